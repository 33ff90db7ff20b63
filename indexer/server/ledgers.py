"""The ledgers of an indexer: one object for each part of each pool that its workers publish to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from indexer.layout import Part, part_of
from indexer.server.ledger import Ledger
from indexer.server.metrics import IndexerMetrics
from warmroute.config.indexer import IndexerConfig
from warmroute.redis.client import Client

# A pool costs a few objects here; pools are few, and a worker with a bad name must not fill memory.
POOL_LIMIT: Final = 1024


class TooManyPoolsError(Exception):
    """More pools are in use than an indexer keeps."""


class Ledgers:
    """At most `POOL_LIMIT` pools; those that no stream uses make room for new ones."""

    def __init__(
        self,
        redis: Client,
        heartbeats: Client,
        config: IndexerConfig,
        metrics: IndexerMetrics,
        *,
        pools_in_use: Callable[[], Collection[str]],
    ) -> None:
        self._redis = redis
        self._heartbeats = heartbeats
        self._config = config
        self._metrics = metrics
        self._pools_in_use = pools_in_use
        self._pools: dict[str, list[Ledger]] = {}

    @property
    def pools(self) -> Mapping[str, list[Ledger]]:
        """The pools with the ledgers of all their parts, in order."""
        return self._pools

    def of(self, pool: str, worker_id: str) -> Ledger:
        """The ledger that a worker belongs to. Raises TooManyPoolsError."""
        part = part_of(pool, worker_id, self._config.parts)
        parts = self._pools.get(pool)
        if parts is None:
            if len(self._pools) >= POOL_LIMIT:
                used = self._pools_in_use()
                self._pools = {name: known for name, known in self._pools.items() if name in used}
            if len(self._pools) >= POOL_LIMIT:
                raise TooManyPoolsError(f"more than {POOL_LIMIT} pools")
            parts = self._open(pool)
        return parts[part.number]

    def know(self, pools: Iterable[str]) -> None:
        """Keep ledgers of these pools too, as far as there is room: they may have workers that nobody publishes for."""
        for pool in pools:
            if pool not in self._pools and len(self._pools) < POOL_LIMIT:
                self._open(pool)

    def forget(self, pool: str) -> None:
        """Keep no ledgers of this pool."""
        self._pools.pop(pool, None)

    def _open(self, pool: str) -> list[Ledger]:
        parts = self._pools[pool] = [self._ledger(Part(pool, number)) for number in range(self._config.parts)]
        return parts

    def _ledger(self, part: Part) -> Ledger:
        return Ledger(
            self._redis,
            part,
            self._metrics,
            heartbeats=self._heartbeats,
            parts=self._config.parts,
            log_entries=self._config.log_entries,
            log_bytes=self._config.log_bytes,
        )
