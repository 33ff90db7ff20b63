"""The public port's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter


class HttpMetrics:
    """What the public port counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.access_log_dropped = Counter(
            "warmroute_gateway_access_log_dropped",
            "Lines of the access log that were lost, since too many waited or they could not be written.",
            registry=registry,
        )
        self.client_connections = Gauge(
            "warmroute_gateway_client_connections", "Open connections of clients.", registry=registry
        )
        self.client_connections_limit = Gauge(
            "warmroute_gateway_client_connections_limit",
            "Most connections of clients, by the process's limit of open files.",
            registry=registry,
        )
        self.full_connections = Counter(
            "warmroute_gateway_full_connections",
            "Connections at the limit: idle ones closed for new ones, and new ones refused with 503.",
            ("outcome",),
            registry=registry,
        )
        self.body_bytes = Gauge(
            "warmroute_gateway_body_bytes",
            "Bytes of request bodies of more than 16 KiB, from their arrival until their reply begins.",
            registry=registry,
        )
        self.refused_bodies = Counter(
            "warmroute_gateway_refused_bodies",
            "Request bodies that were not taken: head (credentials, limits, path), client (it holds too much), total.",
            ["reason"],
            registry=registry,
        )
