"""Situations from the field that concern the index as a whole: slow consumers, endless prefixes, rollouts."""

from __future__ import annotations

import asyncio
import sys
import time

import grpc

from indexer.layout import WorkerFacts
from indexer.reader.mirror import Mirror
from tests.indexer.support import PART, Engine, engine, follower, in_step, indexer, run, running
from tests.support import eventually, redis_client
from warmroute.v1 import index_pb2_grpc

WINDOW = 20_000
PREFIXES = 1_000_000


class Stalled(index_pb2_grpc.IndexServiceServicer):
    """Accepts streams, and neither reads nor answers."""

    def __init__(self) -> None:
        self.streams = 0

    async def Publish(self, request_iterator, context) -> None:  # noqa: N802
        self.streams += 1
        await asyncio.sleep(3600)

    async def Loads(self, request, context) -> None:  # noqa: N802
        raise NotImplementedError

    async def Describe(self, request, context) -> None:  # noqa: N802
        raise NotImplementedError


def test_a_consumer_that_stalls_never_blocks_the_engine() -> None:
    async def scenario() -> None:
        server, stalled = grpc.aio.server(), Stalled()
        index_pb2_grpc.add_IndexServiceServicer_to_server(stalled, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        worker = engine(f"127.0.0.1:{port}", "w")
        try:
            async with running(worker.publisher.run()):
                await eventually(lambda: stalled.streams)
                state = worker.publisher.state
                slowest = 0.0
                for number in range(3000):
                    started_at = time.perf_counter()
                    worker.store(number)
                    if number >= 100:
                        worker.remove(number - 100)
                    slowest = max(slowest, time.perf_counter() - started_at)
                    if number % 100 == 0:
                        await asyncio.sleep(0)
                assert slowest < 0.5
                assert state.held_count("device") == 100
                # Changes that nobody took have merged: what is left is what a snapshot would say.
                assert state.unpublished <= 200
        finally:
            await server.stop(0)

    run(scenario())


def test_a_million_prefixes_pass_through_and_memory_stays_bounded() -> None:
    facts = WorkerFacts("", "m", "e", "0", 16, 64, "f", publishes_events=True)
    mirror = Mirror()
    mirror.open_slot(1)
    mirror.set_worker("w", 1, facts)

    def scattered(number: int) -> int:
        return number * 0x9E3779B97F4A7C15 % (1 << 64)

    def table_bytes() -> int:
        return sum(map(sys.getsizeof, mirror._tiers["device"]))

    for first in range(0, WINDOW, 1000):
        mirror.add(1, "device", map(scattered, range(first, first + 1000)))
    filled = table_bytes()
    for first in range(WINDOW, PREFIXES, 1000):
        mirror.remove(1, "device", map(scattered, range(first - WINDOW, first - WINDOW + 1000)))
        mirror.add(1, "device", map(scattered, range(first, first + 1000)))
    assert mirror.size == WINDOW
    assert table_bytes() <= 2 * filled


def test_what_passes_through_a_worker_leaves_redis_as_large_as_its_cache(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url, log_entries=1000) as index, follower(redis_url) as mirror:
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()), redis_client(redis_url) as redis:
                for number in range(20_000):
                    worker.store(number)
                    if number >= 50:
                        worker.remove(number - 50)
                    if number % 50 == 0:
                        await asyncio.sleep(0.002)
                await eventually(lambda: in_step(mirror, worker))
                assert mirror.mirror.size == 50
                stored = sum([await redis.scard(key) async for key in redis.scan_iter(match="*:keys:*")])
                assert stored == 50
                assert await redis.xlen(PART.key("log")) <= 1200

    run(scenario())


def test_a_rollout_of_all_workers_takes_seconds_and_one_snapshot_each(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror:

            def generation(name: str) -> list[Engine]:
                made = [engine(index.address, f"{name}{number}") for number in range(40)]
                for number, worker in enumerate(made):
                    for block in range(50):
                        worker.store(number * 100 + block)
                return made

            old = generation("old")
            async with running(*(worker.publisher.run() for worker in old)):
                await eventually(lambda: in_step(mirror, *old), within=20)
            new = generation("new")
            started_at = time.monotonic()
            async with running(*(worker.publisher.run() for worker in new)):

                def known(worker: Engine) -> bool:
                    name = worker.publisher.identity.worker_id
                    return set(mirror.mirror.held(name, "device")) == worker.publisher.state.held("device")

                await eventually(lambda: all(map(known, new)), within=20)
                assert time.monotonic() - started_at < 10
                assert [worker.publisher._metrics.snapshots._value.get() for worker in new] == [1] * 40

    run(scenario())
