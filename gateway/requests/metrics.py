"""The metrics of requests, from their arrival to their reply's last byte."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from warmroute.process.cached_labels import Counter, Histogram

FIRST_BYTE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 20, 40, 80)
ROUTE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)


class RequestMetrics:
    """What is counted of a request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "warmroute_gateway_requests",
            "Requests answered, by pool ('' where none was chosen) and HTTP status.",
            ["pool", "code"],
            registry=registry,
        )
        self.first_byte_seconds = Histogram(
            "warmroute_gateway_first_byte_seconds",
            "From the request's arrival to the reply's first byte.",
            ["pool"],
            buckets=FIRST_BYTE_BUCKETS,
            registry=registry,
        )
        self.route_seconds = Histogram(
            "warmroute_gateway_route_seconds",
            "From the request's arrival to the choice of a worker: template, tokens, keys, match, cost.",
            ["pool"],
            buckets=ROUTE_BUCKETS,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "warmroute_gateway_prompt_tokens",
            "Prompt tokens of completed requests whose reply carried usage with cached tokens, as engines count them.",
            ["pool"],
            registry=registry,
        )
        self.cached_tokens = Counter(
            "warmroute_gateway_cached_tokens",
            "Those of warmroute_gateway_prompt_tokens_total that engines reported as served from cache.",
            ["pool"],
            registry=registry,
        )
        self.keyed_tokens = Counter(
            "warmroute_gateway_keyed_tokens",
            "Prompt tokens of completed requests that were routed by their keys, as the gateway counts them.",
            ["pool"],
            registry=registry,
        )
        self.matched_tokens = Counter(
            "warmroute_gateway_matched_tokens",
            "Those of warmroute_gateway_keyed_tokens_total that the index expected on the chosen worker.",
            ["pool"],
            registry=registry,
        )
        self.load_only = Counter(
            "warmroute_gateway_load_only",
            "Requests routed by load alone, by reason.",
            ["pool", "reason"],
            registry=registry,
        )
        self.prompt_tokens_mismatch = Counter(
            "warmroute_prompt_tokens_mismatch",
            "Replies that count other prompt tokens than the gateway made of the prompt: its keys were wrong.",
            ["pool"],
            registry=registry,
        )
        self.cached_tokens_error = Histogram(
            "warmroute_gateway_cached_tokens_error",
            "Cached tokens that routing expected, less those that the reply tells.",
            ["pool"],
            registry=registry,
            buckets=(-8192, -1024, -256, -64, -1, 0, 64, 256, 1024, 8192),
        )
        self.engine_tokens = Counter(
            "warmroute_gateway_engine_tokens",
            "Prompts that the engine was asked to tokenise, since most replies counted other tokens: told, failed.",
            ["pool", "outcome"],
            registry=registry,
        )
        self.decision_log_dropped = Counter(
            "warmroute_gateway_decision_log_dropped",
            "Lines of the decision log that were lost, since too many waited or they could not be written.",
            registry=registry,
        )
        self.ignored_hints = Counter(
            "warmroute_gateway_ignored_hints",
            "Malformed hints of requests, which were served without them: priority, session.",
            ["hint"],
            registry=registry,
        )
        self.stripped_fields = Counter(
            "warmroute_gateway_stripped_fields",
            "Fields that steer an engine and were taken out of tenants' bodies (tenants.engine_fields).",
            ["field"],
            registry=registry,
        )
        self.stored_response_calls = Counter(
            "warmroute_gateway_stored_response_calls",
            "Calls to Redis for the owners of stored responses, by operation (find, learn, forget) and outcome: done, "
            "missing, foreign (another tenant's id), failed (an error, or too slow), dropped (too many wait).",
            ["operation", "outcome"],
            registry=registry,
        )
