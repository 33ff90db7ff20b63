"""Every metric the product exposes, here and beside: `warmroute_<part>_<what>_<unit>`.

Labels are bounded by the deployment (pool, worker, tier, reason), never by users, prompts or unknown model names.
Dashboards and alert rules query only what is declared here or by an engine. Each class takes the registry to declare
in, so that several parts can live in one process.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter, Histogram

FIRST_BYTE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 20, 40, 80)
ROUTE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)


class GatewayMetrics:
    """The gateway's metrics, the mirror's among them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "warmroute_gateway_requests",
            "Requests answered, by pool ('' where none was chosen) and HTTP status.",
            ["pool", "code"],
            registry=registry,
        )
        self.worker_requests = Counter(
            "warmroute_gateway_worker_requests",
            "Attempts on workers, by how they ended.",
            ["pool", "worker", "outcome"],
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
        self.access_log_dropped = Counter(
            "warmroute_gateway_access_log_dropped",
            "Lines of the access log that were lost, since too many waited or they could not be written.",
            registry=registry,
        )
        self.decision_log_dropped = Counter(
            "warmroute_gateway_decision_log_dropped",
            "Lines of the decision log that were lost, since too many waited or they could not be written.",
            registry=registry,
        )
        self.retries = Counter(
            "warmroute_gateway_retries",
            "Attempts that followed a failed one.",
            ["pool"],
            registry=registry,
        )
        self.refused_retries = Counter(
            "warmroute_gateway_refused_retries",
            "Attempts that could have followed a failed one, but for the pool's retry budget.",
            ["pool"],
            registry=registry,
        )
        self.pool_fingerprints = Gauge(
            "warmroute_gateway_pool_fingerprints",
            "Ways in which the pool's workers key; more than 1: all but one are routed by load.",
            ["pool"],
            registry=registry,
        )
        self.pool_file_sets = Gauge(
            "warmroute_gateway_pool_file_sets",
            "Different sets of tokenizer, template and configuration files that the pool's workers offer.",
            ["pool"],
            registry=registry,
        )
        self.tokenizer = Gauge(
            "warmroute_gateway_tokenizer",
            "1 for where the pool's tokenizer is from: folder, hub, workers; none: requests are routed by load.",
            ["pool", "source"],
            registry=registry,
        )
        self.tokenizer_loads = Counter(
            "warmroute_gateway_tokenizer_loads",
            "Tokenizers and templates put to use, or not: loaded, failed (tried again).",
            ["pool", "outcome"],
            registry=registry,
        )
        self.in_flight_requests = Gauge(
            "warmroute_gateway_in_flight_requests",
            "Requests of this gateway in flight on a worker.",
            ["pool", "worker"],
            registry=registry,
        )
        self.pending_tokens = Gauge(
            "warmroute_gateway_pending_tokens",
            "Prefill tokens that this gateway has booked on a worker and that have not been computed.",
            ["pool", "worker"],
            registry=registry,
        )
        self.flight_shared = Gauge(
            "warmroute_gateway_flight_shared",
            "1 while this gateway knows the other gateways' requests in flight, 0 while it goes by its own and by the "
            "workers' reports.",
            ["pool"],
            registry=registry,
        )
        self.flight_gateways = Gauge(
            "warmroute_gateway_flight_gateways",
            "Other gateways (each process is one) whose requests in flight are known.",
            ["pool"],
            registry=registry,
        )
        self.flight_sent = Counter(
            "warmroute_gateway_flight_sent",
            "Messages about requests in flight to the other gateways: sent, failed.",
            ["pool", "outcome"],
            registry=registry,
        )
        self.flight_received = Counter(
            "warmroute_gateway_flight_received",
            "Messages about requests in flight: applied, gap (applied, but some before it were lost), own, stale "
            "(repeated or out of order), refused (past a bound), malformed.",
            ["pool", "outcome"],
            registry=registry,
        )
        self.workers = Gauge(
            "warmroute_gateway_workers",
            "Workers known to discovery, by state: ready, ejected, unhealthy.",
            ["pool", "state"],
            registry=registry,
        )
        self.unjoined_workers = Gauge(
            "warmroute_gateway_unjoined_workers",
            "Workers of discovery that join no worker of the index, routed by load alone.",
            ["pool"],
            registry=registry,
        )
        self.approximate_workers = Gauge(
            "warmroute_gateway_approximate_workers",
            "Workers that publish no events: what they hold is taken from what was routed to them.",
            ["pool"],
            registry=registry,
        )
        self.rated_workers = Gauge(
            "warmroute_gateway_rated_workers",
            "Workers whose prefill rate is learned; with half of them, costs are counted in seconds.",
            ["pool"],
            registry=registry,
        )
        self.session_requests = Counter(
            "warmroute_gateway_session_requests",
            "Picks for requests that named a session: new (none remembered), stayed (on the worker that it used last), "
            "moved.",
            ["pool", "outcome"],
            registry=registry,
        )
        self.late_workers = Gauge(
            "warmroute_gateway_late_workers",
            "Workers whose heartbeat is late, routed by load alone.",
            ["pool"],
            registry=registry,
        )
        self.unreported_workers = Gauge(
            "warmroute_gateway_unreported_workers",
            "Workers of the index whose load report is late or missing, taken for as loaded as the others' median.",
            ["pool"],
            registry=registry,
        )
        self.load_streams = Gauge(
            "warmroute_gateway_load_streams",
            "Open load streams to indexer replicas.",
            registry=registry,
        )
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
        self.ignored_hints = Counter(
            "warmroute_gateway_ignored_hints",
            "Malformed hints of requests, which were served without them: priority, session.",
            ["hint"],
            registry=registry,
        )
        self.stored_response_calls = Counter(
            "warmroute_gateway_stored_response_calls",
            "Calls to Redis for the owners of stored responses, by operation (find, learn, forget) and outcome: done, "
            "missing, foreign (another tenant's id), failed (an error, or too slow), dropped (too many wait).",
            ["operation", "outcome"],
            registry=registry,
        )
        self.mirror_keys = Gauge(
            "warmroute_mirror_keys",
            "Distinct keys in the mirror.",
            ["pool", "tier"],
            registry=registry,
        )
        self.mirror_refused_keys = Gauge(
            "warmroute_mirror_refused_keys",
            "Keys left out because the mirror has its limit, since there was room; matches are shorter for it.",
            ["pool"],
            registry=registry,
        )
        self.mirror_host_indexed = Gauge(
            "warmroute_mirror_host_indexed",
            "0 once the host tier was given up to make room for device keys.",
            ["pool"],
            registry=registry,
        )
        self.mirror_boots = Counter(
            "warmroute_mirror_boots",
            "Times the mirror read a whole part, by reason: start, trimmed, wiped, room, error.",
            ["pool", "reason"],
            registry=registry,
        )
        self.mirror_entries = Counter(
            "warmroute_mirror_log_entries",
            "Log entries applied.",
            ["pool"],
            registry=registry,
        )
        self.mirror_lag_seconds = Gauge(
            "warmroute_mirror_lag_seconds",
            "Age of the newest log entry of each part when it was applied.",
            ["pool", "part"],
            registry=registry,
        )
        self.mirror_connected = Gauge(
            "warmroute_mirror_connected",
            "1 while the mirror follows the index, 0 while it routes on what it last saw.",
            ["pool"],
            registry=registry,
        )
        self.predicted_keys = Gauge(
            "warmroute_mirror_predicted_keys",
            "Keys expected on workers from requests just routed, not yet confirmed.",
            ["pool"],
            registry=registry,
        )
