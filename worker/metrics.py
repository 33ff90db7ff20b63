"""The metrics of workers and agents."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter


class WorkerMetrics:
    """The publisher's metrics; the built-in engine adds its own under vLLM's names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge(
            "warmroute_worker_connected",
            "1 while the worker's stream to an indexer is open and welcomed.",
            registry=registry,
        )
        self.held_keys = Gauge("warmroute_worker_held_keys", "Keys this worker holds.", ["tier"], registry=registry)
        self.unpublished_keys = Gauge(
            "warmroute_worker_unpublished_keys", "Changes that no indexer has acknowledged.", registry=registry
        )
        self.unpublished_seconds = Gauge(
            "warmroute_worker_unpublished_seconds",
            "Age of the oldest change that no indexer has acknowledged; 0 when there is none.",
            registry=registry,
        )
        self.snapshots = Counter("warmroute_worker_snapshots", "Snapshots acknowledged.", registry=registry)
        self.deltas = Counter("warmroute_worker_deltas", "Deltas acknowledged.", registry=registry)
        self.reconnects = Counter(
            "warmroute_worker_reconnects",
            "Streams that ended, by reason.",
            ["reason"],
            registry=registry,
        )
        self.orphaned_blocks = Counter(
            "warmroute_worker_orphaned_blocks",
            "Stored blocks left out of the index because their parent is unknown.",
            registry=registry,
        )
        self.skipped_events = Counter(
            "warmroute_worker_skipped_events", "Engine events that could not be applied.", registry=registry
        )
        self.overfull_blocks = Counter(
            "warmroute_worker_overfull_blocks",
            "Copies of blocks forgotten since the engine can hold no more: removals were lost.",
            registry=registry,
        )


class AgentMetrics:
    """What an agent sees of a foreign engine; `rank` is the data-parallel rank."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.engine_up = Gauge(
            "warmroute_agent_engine_up", "1 while the engine answers its health check.", registry=registry
        )
        self.approximate = Gauge(
            "warmroute_agent_approximate",
            "1 while the engine's cache events cannot be read, so that gateways guess what it holds.",
            registry=registry,
        )
        self.feed = Counter(
            "warmroute_agent_events",
            "What became of the engine's event messages: batches, repeats, gaps, lost, lives, dropped, undecodable, "
            "unknown.",
            ["rank", "what"],
            registry=registry,
        )
        self.ignored_blocks = Counter(
            "warmroute_agent_ignored_blocks",
            "Blocks that are of no use to the index, by reason: medium, group, size.",
            ["rank", "reason"],
            registry=registry,
        )
        self.scrape_failures = Counter(
            "warmroute_agent_scrape_failures", "Readings of the engine's metrics that failed.", registry=registry
        )
