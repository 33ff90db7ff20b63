"""What one look of `warmroute index` gave, for the table and for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from indexer.inspection.view import PoolView, ServerView
from warmroute.cli.index_streams import IndexerView, StreamView, WorkerKey


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one look at the index gave."""

    redis: str
    server: ServerView
    survey_complete: bool
    pools: list[PoolView]
    indexers: list[IndexerView]
    streams: dict[WorkerKey, StreamView]
    read_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Field names are part of the command's interface: they are added to, never renamed."""
        pools = [asdict(pool) for pool in self.pools]
        for pool in pools:
            for worker in pool["workers"]:
                stream = self.streams.get((pool["pool"], worker["worker_id"]))
                worker["stream"] = asdict(stream) if stream else None
        return {
            "redis": {"url": self.redis, **asdict(self.server)},
            "survey_complete": self.survey_complete,
            "pools": pools,
            "indexers": [asdict(indexer) for indexer in self.indexers],
            "read_seconds": round(self.read_seconds, 4),
        }
