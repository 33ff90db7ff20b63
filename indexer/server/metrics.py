"""The indexer's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.cached_labels import Counter, Histogram

LEDGER_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class IndexerMetrics:
    """The indexer's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.publish_streams = Gauge(
            "warmroute_indexer_publish_streams", "Open streams of workers.", ["pool"], registry=registry
        )
        self.load_subscribers = Gauge(
            "warmroute_indexer_load_subscribers", "Gateways that listen to loads.", registry=registry
        )
        self.snapshots = Counter("warmroute_indexer_snapshots", "Snapshots completed.", ["pool"], registry=registry)
        self.deltas = Counter("warmroute_indexer_deltas", "Deltas applied.", ["pool"], registry=registry)
        self.keys = Counter(
            "warmroute_indexer_keys",
            "Keys written, by operation: snapshot, add, remove.",
            ["pool", "operation"],
            registry=registry,
        )
        self.refusals = Counter(
            "warmroute_indexer_refusals",
            "Streams and messages refused, by gRPC status.",
            ["reason"],
            registry=registry,
        )
        self.dropped_workers = Counter(
            "warmroute_indexer_dropped_workers",
            "Workers removed from the ledger after a long silence.",
            ["pool"],
            registry=registry,
        )
        self.model_files = Counter(
            "warmroute_indexer_model_files",
            "Model files that workers were asked for, by what came of it: stored, refused (too long, out of order), "
            "mismatch (not what its digest says), abandoned, full (those in use leave no room), failed (Redis).",
            ["pool", "outcome"],
            registry=registry,
        )
        self.ledger_seconds = Histogram(
            "warmroute_indexer_ledger_seconds",
            "Time of one call to Redis.",
            ["operation"],
            buckets=LEDGER_BUCKETS,
            registry=registry,
        )
        self.ledger_errors = Counter(
            "warmroute_indexer_ledger_errors", "Failed calls to Redis.", ["operation"], registry=registry
        )
        self.ledger_up = Gauge(
            "warmroute_indexer_ledger_up",
            "1 when the last heartbeat call to Redis succeeded.",
            registry=registry,
        )

    def forget_pool(self, pool: str) -> None:
        """Drop the series of a pool that is gone, so that names of pools come and go without an end."""
        for metric in (
            self.publish_streams,
            self.snapshots,
            self.deltas,
            self.keys,
            self.dropped_workers,
            self.model_files,
        ):
            metric.remove_by_labels({"pool": pool})
