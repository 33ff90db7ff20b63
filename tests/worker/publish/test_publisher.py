"""The publisher against real indexers: what a worker that cannot publish shows, and how it changes replicas."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from prometheus_client import CollectorRegistry

from tests.indexer.support import Engine, engine, identity, indexer, run, running
from tests.ports import free_ports
from tests.support import eventually
from warmroute.v1 import index_pb2_grpc
from worker.events import BlockStored, EngineLoad
from worker.metrics import WorkerMetrics
from worker.publish.publisher import Publisher


def test_a_worker_that_cannot_publish_shows_how_far_it_is_behind(redis_url: str) -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        registry = CollectorRegistry()
        publisher = Publisher(f"127.0.0.1:{port}", identity("w"), EngineLoad, WorkerMetrics(registry))
        worker = Engine(publisher)

        def shown(name: str) -> float | None:
            return registry.get_sample_value(f"warmroute_worker_{name}")

        assert shown("unpublished_seconds") == 0
        async with running(publisher.run()):
            worker.store(1)
            await eventually(lambda: (shown("unpublished_seconds") or 0) > 0.2)
            assert shown("unpublished_keys") == 1
            assert shown("connected") == 0
            await eventually(lambda: publisher.trouble.startswith("unavailable: "))
            async with indexer(redis_url, port=port):
                await eventually(lambda: shown("unpublished_seconds") == 0, within=20)
                assert shown("unpublished_keys") == 0

    asyncio.run(scenario())


def test_orphans_and_lag_reach_the_indexer(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "w")
            worker.publisher.apply([BlockStored(b"child", b"unknown", [1] * 16)])
            async with running(worker.publisher.run()):
                (load,) = await eventually(lambda: list(index.loads().values()))
                assert load.orphaned_blocks == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_worker_passes_over_a_replica_that_is_not_there(order: tuple[int, int], redis_url: str) -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        async with indexer(redis_url) as index:
            names = [index.address, f"127.0.0.1:{port}"]
            worker = engine(",".join(names[number] for number in order), "w")
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.publisher.connected)

    asyncio.run(scenario())


def test_a_worker_told_to_leave_finishes_what_is_on_the_way(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as one, indexer(redis_url) as two:
            worker = engine(f"{one.address},{two.address}", "w", capacity_keys=20_000)
            worker.hold(set(range(20_000)))
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.publisher.connected)
                first, second = (one, two) if one.service.streams else (two, one)
                # In the midst of its snapshot, of five chunks and more.
                await eventually(lambda: any(session.held for session in first.sessions))
                await first.service.drain()
                await eventually(lambda: second.service.streams and worker.publisher.connected)
                assert worker.count("snapshots") == 1
                assert worker.reconnects() == {"leave": 1}
                worker.store(1)
                await eventually(lambda: worker.count("deltas"))

    asyncio.run(scenario())


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
