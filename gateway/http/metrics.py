"""The public port's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from warmroute.process.cached_labels import Counter


class HttpMetrics:
    """What the public port counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.access_log_dropped = Counter(
            "warmroute_gateway_access_log_dropped",
            "Lines of the access log that were lost, since too many waited or they could not be written.",
            registry=registry,
        )
