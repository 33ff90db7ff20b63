"""The workers' side in one process: real publishers, each with its own gRPC channel, fed with ready-made keys.

Keys enter where `Publisher.apply` hands them on once it has hashed the engine's events, since hashing is spread over
as many machines as there are workers.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import reduce
from operator import xor

from prometheus_client import CollectorRegistry

from bench.index.workload import BLOCK_TOKENS, POOL, Sizes, keys_of_workers, random_keys, rng, worker_id
from worker.events import EngineLoad
from worker.metrics import WorkerMetrics
from worker.publish.index_blocks import Changes
from worker.publish.publisher import Identity, Publisher, new_epoch

FEED_SECONDS = 0.005
STEP_SECONDS = 0.025


@dataclass(frozen=True, slots=True)
class Published:
    """`started_at`: time.monotonic, which all processes of a machine share. `merge_cpu_seconds`:
    what the workers' states took for the changes, before anything was sent."""

    started_at: float
    merge_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Steady:
    """Changes made at a steady rate: when each was made, one key of it to look for, and how many it added."""

    made_at: array[float]
    markers: array[int]
    added_each: int
    keys_per_s: float


class Publishers:
    """What the parent calls; see `bench.index.processes.Process`."""

    def __init__(self, publishers: list[Publisher], seed: int, sizes: Sizes) -> None:
        self._publishers = publishers
        self._held = keys_of_workers(seed, sizes)
        self._fresh = rng(seed, "steady")

    async def publish(self) -> Published:
        """All workers fill their caches at once; ends when the indexer has acknowledged the last delta."""
        changes = [Changes(added=set(keys)) for keys in self._held]
        started_at, cpu = time.monotonic(), time.thread_time()
        for publisher, change in zip(self._publishers, changes, strict=True):
            publisher.state.apply("device", change, started_at)
        merge_cpu = time.thread_time() - cpu
        await self._acknowledged()
        return Published(started_at, merge_cpu)

    async def snapshots(self) -> Published:
        """All workers start a new epoch with the cache they have, and send it as snapshots."""
        started_at = time.monotonic()
        for publisher in self._publishers:
            publisher.state.renew(new_epoch(), started_at)
        await self._acknowledged()
        return Published(started_at, 0.0)

    async def steady(self, keys_per_s: float, seconds: float) -> Steady:
        """Every worker evicts and adds as many keys as it must, every 25 ms, for all to change so many a second."""
        made_at, markers = array("d"), array("Q")
        oldest = [deque(publisher.state.held("device")) for publisher in self._publishers]
        each = max(1, round(keys_per_s * STEP_SECONDS / len(self._publishers) / 2))
        started_at = time.monotonic()
        step = 0
        while (now := time.monotonic()) < started_at + seconds:
            # Workers take turns, so that their steps spread over the time between two of them.
            due = int((now - started_at) / STEP_SECONDS * len(self._publishers))
            for number in range(step, due):
                worker = number % len(self._publishers)
                added = random_keys(self._fresh, each)
                removed = {oldest[worker].popleft() for _ in range(each)}
                oldest[worker].extend(added)
                made_at.append(time.monotonic())
                markers.append(added[0])
                self._publishers[worker].state.apply("device", Changes(set(added), removed), made_at[-1])
            step = due
            await asyncio.sleep(FEED_SECONDS)
        took = time.monotonic() - started_at
        await self._acknowledged()
        return Steady(made_at, markers, each, len(markers) * each * 2 / took)

    async def contents(self) -> dict[str, tuple[int, int]]:
        """What each worker holds: how many keys, and all of them XORed."""
        return {
            publisher.identity.worker_id: (
                publisher.state.held_count("device"),
                reduce(xor, publisher.state.held("device"), 0),
            )
            for publisher in self._publishers
        }

    async def _acknowledged(self) -> None:
        """Wait until nothing is unpublished."""
        while not all(  # noqa: ASYNC110 - nothing in the publishers tells of it
            publisher.connected
            and publisher.state.seq
            and publisher.state.in_flight is None
            and not publisher.state.unpublished
            for publisher in self._publishers
        ):
            await asyncio.sleep(FEED_SECONDS)


@asynccontextmanager
async def open_publishers(indexer: str, seed: int, sizes: Sizes) -> AsyncIterator[Publishers]:
    """As many workers as the run has, connecting."""
    publishers = [
        Publisher(indexer, _identity(number, sizes), EngineLoad, WorkerMetrics(CollectorRegistry()))
        for number in range(sizes.workers)
    ]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(publisher.run()) for publisher in publishers]
        yield Publishers(publishers, seed, sizes)
        for task in running:
            task.cancel()


def _identity(number: int, sizes: Sizes) -> Identity:
    return Identity(
        pool=POOL,
        worker_id=worker_id(number),
        address=f"127.0.0.1:{8100 + number}",
        model="bench",
        engine="bench",
        engine_version="0",
        engine_block_tokens=BLOCK_TOKENS,
        index_block_tokens=BLOCK_TOKENS,
        capacity_keys=sizes.keys_a_worker,
    )
