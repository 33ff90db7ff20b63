"""Clients that break the rules are refused by the field's name, and the others notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from indexer.server.inflight import InflightGate
from indexer.server.process import STREAMS_A_CONNECTION
from indexer.server.validation import KEYS_LIMIT
from tests.indexer.support import POOL, Indexer, engine, hello, indexer, last_status, raw_status, run, running
from tests.support import eventually
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

MOST = 2**64 - 1


def device(*keys: int) -> list[pb.TierKeys]:
    return [pb.TierKeys(tier=pb.TIER_DEVICE, keys=keys)]


def delta(**fields) -> pb.PublishRequest:
    return pb.PublishRequest(delta=pb.Delta(**{"epoch": 1, "seq": 2, **fields}))


def chunk(**fields) -> pb.PublishRequest:
    return pb.PublishRequest(snapshot=pb.SnapshotChunk(**{"epoch": 1, "seq": 1, **fields}))


def load(**fields) -> pb.PublishRequest:
    return pb.PublishRequest(load=pb.Load(epoch=1, **fields))


REFUSED = [
    (delta(added=device(5, 6, 5)), "delta.added.keys", "0x5 twice"),
    (delta(added=device(7, 8), removed=device(9, 8)), "delta.added.keys", "0x8"),
    (delta(seq=MOST), "delta.seq", "2**53"),
    (delta(added=device(*range(KEYS_LIMIT + 1))), "delta.added.keys", str(KEYS_LIMIT)),
    (delta(added=device(*range(500))), "delta.added", "hello.capacity allows"),
    (chunk(held=device(*range(KEYS_LIMIT + 1))), "snapshot.held.keys", str(KEYS_LIMIT)),
    (chunk(held=device(*range(500))), "snapshot.held", "hello.capacity allows"),
    (chunk(held=device(MOST, MOST), last=True), "snapshot.held.keys", "0xffffffffffffffff twice"),
    (chunk(), "snapshot.held", "only the last chunk may be empty"),
    (load(waiting_tokens=MOST), "load.waiting_tokens", "2**53"),
    (load(unpublished_keys=MOST), "load.unpublished_keys", "2**53"),
    (load(orphaned_blocks=MOST), "load.orphaned_blocks", "2**53"),
    (load(kv_cache_usage=float("inf")), "load.kv_cache_usage", "0 to 1"),
    (load(kv_cache_usage=float("nan")), "load.kv_cache_usage", "0 to 1"),
]


@asynccontextmanager
async def witnessed(redis_url: str, **config) -> AsyncIterator[Indexer]:
    """An indexer with a worker that must keep its one stream, and report its load, through all of the block."""
    async with indexer(redis_url, **config) as index:
        worker = engine(index.address, "witness", pool="of the witness")
        async with running(worker.publisher.run()):
            await eventually(lambda: worker.count("snapshots"))
            yield index
            worker.store(1)
            await eventually(lambda: worker.count("deltas"))
            assert worker.reconnects() == {}


def test_messages_against_the_rules_are_refused_by_field(redis_url: str) -> None:
    async def scenario() -> None:
        async with witnessed(redis_url) as index:
            first = (pb.PublishRequest(hello=hello()), chunk(last=True))
            for message, field, words in REFUSED:
                before = first[:1] if message.HasField("snapshot") else first
                error = await last_status(index.address, *before, message)
                assert error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
                assert error.details().startswith(f"{field}: "), error.details()
                assert words in error.details()

    run(scenario())


def test_a_capacity_beyond_all_bounds_is_refused(redis_url: str) -> None:
    async def scenario() -> None:
        async with witnessed(redis_url) as index:
            capacity = [pb.TierCapacity(tier=pb.TIER_DEVICE, keys=MOST)]
            error = await last_status(index.address, pb.PublishRequest(hello=hello(capacity=capacity)))
            assert error.details().startswith("hello.capacity.keys: ")

    run(scenario())


def test_bytes_that_are_no_message_are_refused(redis_url: str) -> None:
    async def scenario() -> None:
        async with witnessed(redis_url) as index:
            for messages in ([b"\xff" * 100], [pb.PublishRequest(hello=hello()).SerializeToString(), b"\x0a\xff"]):
                error = await raw_status(index.address, *messages)
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert error.details().startswith("body: ")
            error = await raw_status(index.address, b"\x00" * 2_000_000)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(scenario())


def test_chunks_out_of_order_are_answered_with_a_wish_for_a_snapshot(redis_url: str) -> None:
    async def scenario() -> None:
        async with witnessed(redis_url) as index, grpc.aio.insecure_channel(index.address) as channel:
            stream = index_pb2_grpc.IndexServiceStub(channel).Publish()
            await stream.write(pb.PublishRequest(hello=hello()))
            await stream.read()
            for number in (2**32 - 1, 1):
                await stream.write(chunk(chunk=number, held=device(1), last=True))
                answer = await stream.read()
                assert f"snapshot.chunk {number}" in answer.snapshot_wanted.reason
            stream.cancel()

    run(scenario())


def test_a_stream_without_hello_is_ended_soon(redis_url: str) -> None:
    async def scenario() -> None:
        async with witnessed(redis_url) as index:
            error = await last_status(index.address)
            assert error.code() is grpc.StatusCode.ABORTED
            assert "no Hello" in error.details()

    run(scenario())


def test_connections_that_say_nothing_hold_nothing(redis_url: str) -> None:
    async def scenario() -> None:
        async with witnessed(redis_url, max_streams=2) as index:
            connections = [await asyncio.open_connection("127.0.0.1", index.port) for _ in range(50)]
            assert index.service.streams == 1
            other = engine(index.address, "other")
            async with running(other.publisher.run()):
                await eventually(lambda: other.publisher.connected)
            for _, writer in connections:
                writer.close()

    run(scenario())


def test_one_connection_has_its_share_of_streams_and_no_more(redis_url: str) -> None:
    async def scenario() -> None:
        async with witnessed(redis_url) as index, grpc.aio.insecure_channel(index.address) as channel:
            stub = index_pb2_grpc.IndexServiceStub(channel)
            streams = [stub.Publish() for _ in range(2000)]
            writes = [
                asyncio.ensure_future(stream.write(pb.PublishRequest(hello=hello(worker_id=f"w{number}"))))
                for number, stream in enumerate(streams)
            ]
            sessions = index.sessions
            # One more is the witness's.
            await eventually(lambda: len(sessions) == STREAMS_A_CONNECTION + 1)
            other = engine(index.address, "other")
            async with running(other.publisher.run()):
                await eventually(lambda: other.publisher.connected)
                assert len(sessions) <= STREAMS_A_CONNECTION + 2
            for task in writes:
                task.cancel()
            await asyncio.gather(*writes, return_exceptions=True)
            for stream in streams:
                stream.cancel()

    run(scenario())


class CountingGate(InflightGate):
    """Notes the most that was inside at once."""

    inside = most = 0

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        async with super().hold(size):
            CountingGate.inside += size
            CountingGate.most = max(CountingGate.most, CountingGate.inside)
            try:
                yield
            finally:
                CountingGate.inside -= size


def test_a_flood_of_keys_waits_its_turn_while_loads_pass(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.server.service.InflightGate", CountingGate)

    async def scenario() -> None:
        async with witnessed(redis_url, max_inflight_bytes=262_144) as index:
            workers = [engine(index.address, f"w{number}", capacity_keys=20_000) for number in range(12)]
            for number, worker in enumerate(workers):
                worker.hold({number * 2**40 + key for key in range(20_000)})
            async with running(*(worker.publisher.run() for worker in workers)):
                await eventually(lambda: all(worker.count("snapshots") for worker in workers), within=40)
                assert 0 < CountingGate.most <= 262_144
                assert all((POOL, f"w{number}") in index.loads() for number in range(12))

    run(scenario())
