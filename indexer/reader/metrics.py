"""The mirror's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter


class MirrorMetrics:
    """What is counted of the mirrors in one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
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
