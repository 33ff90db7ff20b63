"""A pool's index in a gateway: one mirror, and a follower for each part that the pool has in Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import RedisError

from indexer.layout import MAX_PARTS, TIERS, Part, parts_key
from indexer.reader.metrics import MirrorMetrics
from indexer.reader.mirror import Mirror
from indexer.reader.part_follower import PartFollower
from warmroute.redis.client import Client

logger = logging.getLogger(__name__)

PARTS_EVERY_SECONDS: Final = 0.5
SWEEP_EVERY_SECONDS: Final = 0.25
# A mirror that left keys out is read anew when there is room again, and no oftener than this.
ROOM_EVERY_SECONDS: Final = 600.0
ROOM_SHARE: Final = 0.8


class PoolIndex:
    """Keeps `mirror` and `late` current. `run` is the one task; its owner cancels it and notices its death."""

    def __init__(
        self, redis: Client, pool: str, metrics: MirrorMetrics, *, new_mirror: Callable[[], Mirror] = Mirror
    ) -> None:
        self.pool = pool
        self.mirror = new_mirror()
        self.late: frozenset[str] = frozenset()
        """Workers whose heartbeat is 10 s behind the newest of their part."""
        # redis-py annotates replies for every protocol and decoding at once; here they are bytes.
        self._redis: Any = redis
        self._metrics = metrics
        self._parts: list[tuple[PartFollower, asyncio.Task[None]]] = []
        self._room_made_at = -ROOM_EVERY_SECONDS
        metrics.mirror_connected.labels(pool).set_function(lambda: float(self.connected))

    @property
    def parts(self) -> int:
        """Parts that are followed."""
        return len(self._parts)

    @property
    def booted(self) -> bool:
        """Whether every part was read once."""
        return bool(self._parts) and all(part.booted for part, _ in self._parts)

    @property
    def connected(self) -> bool:
        """Whether every part is followed; else requests are routed on what was last seen."""
        return bool(self._parts) and all(part.connected for part, _ in self._parts)

    async def run(self) -> None:
        """Follow all parts until cancelled. Redis being away is waited out, with the mirror as it last was."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep())
            self._follow_parts(tasks, 1)
            while True:
                try:
                    stored = await self._redis.get(parts_key(self.pool))
                except (RedisError, OSError):
                    stored = None  # the followers say so
                # None: nobody has published yet, or Redis was emptied, and workers come back as they were.
                if stored is not None:
                    self._follow_parts(tasks, self._parts_number(stored))
                self._make_room(time.monotonic())
                self._publish_sizes()
                await asyncio.sleep(PARTS_EVERY_SECONDS)

    def _parts_number(self, stored: bytes) -> int:
        if stored.isdigit() and 1 <= int(stored) <= MAX_PARTS:
            return int(stored)
        logger.error(
            "index of %s: %s is %r, and 1 to %d is possible", self.pool, parts_key(self.pool), stored, MAX_PARTS
        )
        return self.parts

    def _follow_parts(self, tasks: asyncio.TaskGroup, number: int) -> None:
        while len(self._parts) > number:
            part, task = self._parts.pop()
            task.cancel()
            part.forget()
        while len(self._parts) < number:
            part = PartFollower(
                self._redis, Part(self.pool, len(self._parts)), self.mirror, self._metrics, changed=self._gather
            )
            self._parts.append((part, tasks.create_task(part.run())))
        self._gather()

    def _gather(self) -> None:
        self.late = frozenset().union(*(part.late for part, _ in self._parts))

    def _make_room(self, now: float) -> None:
        mirror = self.mirror
        if mirror.complete or mirror.size > ROOM_SHARE * mirror.key_limit:
            return
        if now - self._room_made_at >= ROOM_EVERY_SECONDS:
            self._room_made_at = now
            mirror.start_over()
            for part, _ in self._parts:
                part.boot_again("room")

    async def _sweep(self) -> None:
        while True:
            more = self.mirror.sweep()
            await asyncio.sleep(0 if more else SWEEP_EVERY_SECONDS)

    def _publish_sizes(self) -> None:
        for tier in TIERS:
            self._metrics.mirror_keys.labels(self.pool, tier).set(self.mirror.tier_size(tier))
        self._metrics.mirror_refused_keys.labels(self.pool).set(self.mirror.refused_keys)
        self._metrics.mirror_host_indexed.labels(self.pool).set(self.mirror.host_indexed)
