"""`Describe`: the workers of a replica as their streams know them."""

from __future__ import annotations

import asyncio

import grpc
import pytest

import warmroute
from tests.indexer.support import POOL, engine, hello, indexer, run, running
from tests.support import eventually
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc
from worker.events import EngineLoad


async def describe(address: str, **request) -> pb.DescribeResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = index_pb2_grpc.IndexServiceStub(channel)
        return await stub.Describe(pb.DescribeRequest(**{"format_version": 1, **request}))


def test_a_worker_is_described_with_facts_sizes_and_load(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "w", capacity_keys=77, load=lambda: EngineLoad(1, 2, 3, 0.5))
            worker.store(1)
            worker.store(2)
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.count("snapshots"))
                worker.remove(2)
                worker.store(3)
                worker.store(4)
                await eventually(lambda: worker.count("deltas"))

                async def settled() -> pb.DescribeResponse | None:
                    response = await describe(index.address)
                    load = response.workers[0].load
                    done = load.seq == worker.publisher.state.seq and not load.unpublished_keys
                    return response if done else None

                response = await eventually(settled)
                assert response.version == warmroute.__version__
                assert response.ledger_up
                (found,) = response.workers
                who = worker.publisher.identity
                assert (found.pool, found.worker_id, found.epoch) == (POOL, "w", worker.publisher.state.epoch)
                assert (found.address, found.model) == (who.address, who.model)
                assert (found.engine, found.engine_version) == (who.engine, who.engine_version)
                assert found.seq == worker.publisher.state.seq
                assert list(found.held) == [pb.TierCapacity(tier=pb.TIER_DEVICE, keys=3)]
                assert list(found.capacity) == [pb.TierCapacity(tier=pb.TIER_DEVICE, keys=77)]
                assert (found.load.waiting_tokens, found.load.unpublished_ms) == (3, 0)
                assert found.load_age_ms < 2000
                assert 0 < found.stream_seconds < 60

    run(scenario())


def test_a_stream_that_resumed_knows_no_sizes_and_one_without_snapshot_no_state(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "resumed")
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.count("snapshots"))
                (first,) = index.sessions
                first.kick("cut by the test")
                await eventually(lambda: worker.publisher.connected and first not in index.sessions)
                (found,) = (await describe(index.address)).workers
                assert found.seq == worker.publisher.state.seq > 0
                assert not found.held
            async with grpc.aio.insecure_channel(index.address) as channel:
                stream = index_pb2_grpc.IndexServiceStub(channel).Publish()
                await stream.write(pb.PublishRequest(hello=hello(worker_id="bare")))
                await stream.read()
                bare = next(w for w in (await describe(index.address)).workers if w.worker_id == "bare")
                assert bare.seq == 0
                assert not bare.HasField("load")
                stream.cancel()

    run(scenario())


def test_pools_filter_and_versions_are_checked(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            engines = [engine(index.address, "w", pool=pool) for pool in ("a", "b")]
            async with running(*(worker.publisher.run() for worker in engines)):
                await eventually(lambda: all(worker.publisher.connected for worker in engines))
                assert [worker.pool for worker in (await describe(index.address)).workers] == ["a", "b"]
                assert [worker.pool for worker in (await describe(index.address, pools=["b"])).workers] == ["b"]
                for request, field in (({"format_version": 9}, "format_version"), ({"pools": ["x"] * 2000}, "pools")):
                    with pytest.raises(grpc.aio.AioRpcError, match=f"{field}: ") as error:
                        await describe(index.address, **request)
                    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())
