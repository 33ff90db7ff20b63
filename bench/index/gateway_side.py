"""The gateway's side in a process of its own: a real `PoolIndex` that boots from Redis and follows it."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import reduce
from operator import xor
from typing import Any, cast

from prometheus_client import CollectorRegistry

from bench.index.watched_loop import Slices, Watch, WatchedLoop
from bench.index.workload import POOL
from gateway.process.metrics import GatewayMetrics
from indexer.layout import Tier
from indexer.reader.mirror import Mirror
from indexer.reader.pool_index import PoolIndex
from warmroute.config.redis import RedisConfig
from warmroute.process.lifecycle import freeze_garbage
from warmroute.redis.client import connect

POLL_SECONDS = 0.02


class WatchedMirror:
    """A mirror that counts the keys that enter; `arrivals` keeps when each batch did while it is a list.

    It has a mirror rather than being one: a compiled class has no subclasses that are not.
    """

    def __init__(self) -> None:
        self._mirror = Mirror()
        self.added = 0
        self.added_at = 0.0
        self.arrivals: list[tuple[float, Sequence[int]]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mirror, name)

    def add(self, slot: int, tier: Tier, keys: Iterable[int]) -> None:
        assert isinstance(keys, Sequence | array)
        self._mirror.add(slot, tier, keys)
        self.added += len(keys)
        self.added_at = time.monotonic()
        if self.arrivals is not None:
            self.arrivals.append((self.added_at, keys))


class GatewaySide:
    """What the parent calls; see `bench.index.processes.Process`."""

    def __init__(self, mirror: WatchedMirror, watch: Watch) -> None:
        self._mirror = mirror
        self._watch = watch
        self._opened_at = time.monotonic()

    async def attached(self, workers: int) -> None:
        """Wait until so many workers have a slot."""
        while sum(map(bool, self._mirror.slots.values())) < workers:  # noqa: ASYNC110 - nothing in the mirror tells of it
            await asyncio.sleep(POLL_SECONDS)

    async def begin(self, arrivals: bool = False) -> None:
        """Forget what was counted so far."""
        self._mirror.added = 0
        self._mirror.arrivals = [] if arrivals else None
        self._watch.take()

    async def added(self, keys: int) -> float:
        """Wait until so many keys entered since `begin`; when the last did (time.monotonic)."""
        while self._mirror.added < keys:  # noqa: ASYNC110 - nothing in the mirror tells of it
            await asyncio.sleep(POLL_SECONDS)
        return self._mirror.added_at

    async def swept(self) -> None:
        """Wait until retired slots are cleared; positions are then free again."""
        sizes = -1
        while sizes != (sizes := self._mirror.size):  # noqa: ASYNC110 - nothing in the mirror tells of it
            await asyncio.sleep(1.0)

    async def boot_cost(self) -> tuple[float, float]:
        """Seconds from the start to the last key that entered, and the CPU seconds of all slices until now."""
        return self._mirror.added_at - self._opened_at, self._watch.cpu_seconds

    async def slices(self) -> Slices:
        """Those since last asked."""
        return self._watch.take()

    async def arrived_at(self, markers: array[int]) -> list[float]:
        """When each of these keys entered; they did."""
        wanted = set(markers)
        arrivals: dict[int, float] = {}
        for at, keys in self._mirror.arrivals or ():
            for key in wanted.intersection(keys):
                arrivals[key] = at
        return [arrivals[key] for key in markers]

    async def contents(self) -> dict[str, tuple[int, int]]:
        """What the mirror has of each worker: how many keys, and all of them XORed."""
        found = {}
        for worker_id in self._mirror.workers:
            keys = list(self._mirror.held(worker_id, "device"))
            found[worker_id] = (len(keys), reduce(xor, keys, 0))
            await asyncio.sleep(0)
        return found


@asynccontextmanager
async def open_gateway_side(redis_url: str) -> AsyncIterator[GatewaySide]:
    """A mirror that boots and follows; to be opened on a `WatchedLoop`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, WatchedLoop)
    redis: Any = connect(RedisConfig(url=redis_url))
    freeze_garbage()  # as the gateway does
    mirror = WatchedMirror()
    index = PoolIndex(redis, POOL, GatewayMetrics(CollectorRegistry()), new_mirror=lambda: cast("Mirror", mirror))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(index.run())
        yield GatewaySide(mirror, loop.watch)
        running.cancel()
    await redis.aclose()
