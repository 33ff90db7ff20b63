"""The metrics of API keys and of tenants' limits."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter


class TenantMetrics:
    """What is counted of tenants."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tenants = Gauge(
            "warmroute_gateway_tenants",
            "Tenants of the keys file in use.",
            registry=registry,
        )
        self.key_refusals = Counter(
            "warmroute_gateway_key_refusals",
            "Requests refused for their API key: missing, unknown.",
            ["reason"],
            registry=registry,
        )
        self.key_reloads = Counter(
            "warmroute_gateway_key_reloads",
            "Changed keys files: loaded, refused (the keys before stay in use).",
            ["outcome"],
            registry=registry,
        )
        self.tenant_requests = Counter(
            "warmroute_gateway_tenant_requests",
            "Requests of tenants with limits: admitted, or refused by which limit: requests, tokens, concurrency. "
            "Tenants past the first 1,000 are 'other'.",
            ["tenant", "outcome"],
            registry=registry,
        )
        self.tenant_tokens = Counter(
            "warmroute_gateway_tenant_tokens",
            "Tokens that requests of tenants with limits used, by their usage.",
            ["tenant"],
            registry=registry,
        )
        self.limits_shared = Gauge(
            "warmroute_gateway_limits_shared",
            "1 while tenants' limits are kept over all gateways, 0 while Redis is away and each keeps its share alone.",
            registry=registry,
        )
        self.limit_calls = Counter(
            "warmroute_gateway_limit_calls",
            "Calls to Redis for tenants' limits: answered, failed; late: requests that did not wait for one.",
            ["outcome"],
            registry=registry,
        )
