"""The router's metrics: its picks, what it has booked, and what it knows of a pool's workers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter


class RoutingMetrics:
    """What routers count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.worker_requests = Counter(
            "warmroute_gateway_worker_requests",
            "Attempts on workers, by how they ended.",
            ["pool", "worker", "outcome"],
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
        self.predicted_keys = Gauge(
            "warmroute_mirror_predicted_keys",
            "Keys expected on workers from requests just routed, not yet confirmed.",
            ["pool"],
            registry=registry,
        )
