"""The panels of who asks: tenants, their limits and keys, and what the access log lost."""

from __future__ import annotations

from panels import NAMESPACE, rate, series

TENANT_REQUESTS = "warmroute_gateway_tenant_requests_total"
REFUSED = NAMESPACE + ', outcome!="admitted"'

TENANT_PANELS = [
    series(
        "Requests by tenant",
        "reqps",
        "Of tenants with limits: the ten with most.",
        (f"topk(10, {rate(TENANT_REQUESTS, 'tenant', NAMESPACE)})", "{{tenant}}"),
    ),
    series(
        "Requests refused by limits",
        "reqps",
        "By tenant and limit: the ten with most.",
        (
            f"topk(10, {rate(TENANT_REQUESTS, 'tenant, outcome', REFUSED)})",
            "{{tenant}} {{outcome}}",
        ),
    ),
    series(
        "Tokens by tenant",
        "short",
        "A second, of tenants with limits, as replies tell their usage: the ten with most.",
        (f"topk(10, {rate('warmroute_gateway_tenant_tokens_total', 'tenant', NAMESPACE)})", "{{tenant}}"),
    ),
    series(
        "Limits kept over all gateways",
        "short",
        "0 while a gateway keeps its share of the limits alone, since Redis is away.",
        (f"min(warmroute_gateway_limits_shared{{{NAMESPACE}}})", "worst gateway"),
    ),
    series(
        "Calls to Redis for limits",
        "cps",
        "Late: requests that did not wait for one.",
        (rate("warmroute_gateway_limit_calls_total", "outcome", NAMESPACE), "{{outcome}}"),
    ),
    series(
        "Stored responses in Redis",
        "cps",
        "Who keeps which response: looked up, written, forgotten. Failed or dropped: other gateways do not find it.",
        (
            rate("warmroute_gateway_stored_response_calls_total", "operation, outcome", NAMESPACE),
            "{{operation}} {{outcome}}",
        ),
    ),
    series(
        "Request bodies held",
        "bytes",
        "From their arrival until their reply begins; gateway.uploads_limit_bytes bounds each gateway.",
        (f"max by (pod) (warmroute_gateway_body_bytes{{{NAMESPACE}}})", "{{pod}}"),
    ),
    series(
        "Keys and logs",
        "cps",
        "Keys and bodies refused, keys files read anew or refused, lines that the access or decision log lost.",
        (rate("warmroute_gateway_key_refusals_total", "reason", NAMESPACE), "{{reason}} key"),
        (rate("warmroute_gateway_refused_bodies_total", "reason", NAMESPACE), "body refused: {{reason}}"),
        (rate("warmroute_gateway_key_reloads_total", "outcome", NAMESPACE), "keys file {{outcome}}"),
        (rate("warmroute_gateway_access_log_dropped_total", where=NAMESPACE), "access log lines lost"),
        (rate("warmroute_gateway_decision_log_dropped_total", where=NAMESPACE), "decision log lines lost"),
    ),
]
