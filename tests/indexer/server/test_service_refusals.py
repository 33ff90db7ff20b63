"""What the indexer refuses: bad messages, and streams past its limit."""

from __future__ import annotations

from functools import partial

import grpc

from tests.indexer.support import (
    engine,
    hello,
    indexer,
    last_status,
    run,
    running,
)
from tests.support import eventually
from warmroute.v1 import index_pb2 as pb

REFUSED_HELLOS = [
    ({"format_version": 9}, "hello.format_version"),
    ({"pool": ""}, "hello.pool"),
    ({"worker_id": "x" * 257}, "hello.worker_id"),
    ({"epoch": 0}, "hello.epoch"),
    ({"index_block_tokens": 7}, "hello.index_block_tokens"),
    ({"engine_block_tokens": 0}, "hello.engine_block_tokens"),
    ({"pool_fingerprint": "another"}, "hello.pool_fingerprint"),
    ({"capacity": []}, "hello.capacity"),
    ({"capacity": [pb.TierCapacity(tier=pb.TIER_DEVICE, keys=0)]}, "hello.capacity.keys"),
    ({"capacity": [pb.TierCapacity(keys=1)]}, "hello.capacity.tier"),
    ({"adapters": ["a"] * 1025}, "hello.adapters"),
]
DEVICE_KEYS = [pb.TierKeys(tier=pb.TIER_DEVICE, keys=[1])]
REFUSED_MESSAGES = [
    (pb.PublishRequest(), "body"),
    (pb.PublishRequest(hello=pb.Hello()), "body"),
    (pb.PublishRequest(snapshot=pb.SnapshotChunk(epoch=1, seq=0, last=True)), "snapshot.seq"),
    (pb.PublishRequest(snapshot=pb.SnapshotChunk(epoch=2, seq=1, last=True)), "snapshot.epoch"),
    (pb.PublishRequest(delta=pb.Delta(epoch=1, seq=2**60, added=DEVICE_KEYS)), "delta.seq"),
    (pb.PublishRequest(delta=pb.Delta(epoch=1, seq=1, added=DEVICE_KEYS * 2)), "delta.added.tier"),
    (pb.PublishRequest(delta=pb.Delta(epoch=1, seq=1, removed=[pb.TierKeys(tier=9)])), "delta.removed.tier"),
    (pb.PublishRequest(delta=pb.Delta(epoch=1, seq=1, added=[pb.TierKeys(tier=pb.TIER_HOST)])), "delta.added.tier"),
    (pb.PublishRequest(load=pb.Load(epoch=1, kv_cache_usage=7)), "load.kv_cache_usage"),
    (pb.PublishRequest(load=pb.Load(epoch=1, kv_cache_usage=float("nan"))), "load.kv_cache_usage"),
    (pb.PublishRequest(load=pb.Load(epoch=3)), "load.epoch"),
]


def test_bad_messages_are_refused_with_the_field(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            error = await last_status(index.address, pb.PublishRequest(load=pb.Load()))
            assert "the first message of a stream is Hello" in error.details()
            for changes, field in REFUSED_HELLOS:
                error = await last_status(index.address, pb.PublishRequest(hello=hello(**changes)))
                assert error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}
                assert error.details().startswith(field + ":"), error.details()
            for message, field in REFUSED_MESSAGES:
                error = await last_status(index.address, pb.PublishRequest(hello=hello()), message)
                assert error.details().startswith(field + ":"), error.details()

    run(scenario())


def test_a_full_indexer_refuses_streams(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url, max_streams=1) as index:
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.publisher.connected)
                error = await last_status(index.address, pb.PublishRequest(hello=hello(worker_id="second")))
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(scenario())


def test_a_burst_of_streams_is_not_more_than_one_at_a_time(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url, max_streams=3) as index:
            most = 0
            engines = [engine(index.address, f"w{number}") for number in range(20)]
            async with running(*(worker.publisher.run() for worker in engines)):
                refused = partial(index.count, "refusals", reason="resource_exhausted")

                def seen() -> bool:
                    nonlocal most
                    most = max(most, index.service.streams)
                    return refused() >= 17

                await eventually(seen)
                assert most == 3

    run(scenario())
