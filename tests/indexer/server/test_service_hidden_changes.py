"""Changes that no error tells of: another server behind a living connection, a slot that moves, parts that grow."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry
from redis.crc import key_slot

from indexer.reader.mirror import Mirror
from indexer.server.file_store import FileStore
from indexer.server.file_transfers import FileTransfers
from indexer.server.inflight import InflightGate
from indexer.server.leases import Leases
from indexer.server.load_board import LoadTable
from indexer.server.metrics import IndexerMetrics
from indexer.server.session import Session
from indexer.server.validation import RefusedError
from tests.indexer.reader.test_part_follower import part_follower
from tests.indexer.support import FACTS, PART, engine, follower, in_step, indexer, ledger, run, running
from tests.redis_servers import server_cluster
from tests.support import eventually, redis_client
from warmroute.config.redis import RedisConfig
from warmroute.redis.client import connect
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc


@pytest.mark.parametrize("written_after", [False, True], ids=["idle", "written"])
def test_a_server_that_lost_writes_and_whose_clock_is_behind_is_noticed(redis_url: str, written_after: bool) -> None:
    """As behind a proxy: no connection breaks, and what is written next has lower ids than the mirror's last."""

    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            owner, _ = await book.hello("a", 1, FACTS)
            await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": [1, 2, 3]})
            mirror = Mirror()
            follows = part_follower(redis, mirror)
            async with running(follows.run()):
                await eventually(lambda: set(mirror.held("a", "device")) == {1, 2, 3})
                kept = {key: await redis.dump(key) async for key in redis.scan_iter()}
                await book.delta(owner, seq=2, added={"device": [4]}, removed={"device": [1]})
                await eventually(lambda: set(mirror.held("a", "device")) == {2, 3, 4})
                last = (await redis.xrevrange(PART.key("log"), count=1))[0][0]
                ahead = f"{int(time.time() * 1000) + 60_000}-0"
                await redis.xadd(PART.key("log"), {"v": 1, "p": last, "k": "none", "w": "a"}, id=ahead)
                await eventually(lambda: follows._last_id == ahead)
                async with redis.pipeline(transaction=True) as transaction:
                    transaction.flushall()
                    for key, blob in kept.items():
                        transaction.restore(key, 0, blob)
                    await transaction.execute()
                if written_after:
                    other, _ = await book.hello("b", 1, FACTS)
                    await book.snapshot_chunk(other, seq=1, chunk=0, last=True, held={"device": [9]})
                    await eventually(lambda: set(mirror.held("b", "device")) == {9}, within=5)
                await eventually(lambda: set(mirror.held("a", "device")) == {1, 2, 3}, within=5)

    run(scenario())


def test_a_cluster_that_moves_the_part_pauses_it_and_splits_nothing(tmp_path: Path) -> None:
    with server_cluster(tmp_path) as cluster:
        slot = key_slot(PART.key("log").encode())
        source = cluster.owner(slot)
        target = next(master for master in cluster.masters if master is not source)
        names = {master: master.call("CLUSTER", "MYID").decode() for master in (source, target)}

        async def scenario() -> None:
            async with indexer(cluster.url) as index, follower(cluster.url) as mirror:
                worker = engine(index.address, "w")
                for block in range(5):
                    worker.store(block)
                async with running(worker.publisher.run()):
                    await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size == 5, within=20)
                    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
                    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
                    worker.store(100)
                    await eventually(lambda: not index.service.ledger_up)
                    assert target.call("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
                    for key in source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
                        assert source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 1000) == b"OK"
                    for master in (target, source):
                        master.call("CLUSTER", "SETSLOT", slot, "NODE", names[target])
                    worker.store(200)
                    await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size == 7, within=10)

        run(scenario())


def test_a_pipeline_over_a_slot_that_is_half_moved_reads_both_sides(tmp_path: Path) -> None:
    with server_cluster(tmp_path) as cluster:
        slot = key_slot(b"m")
        source = cluster.owner(slot)
        target = next(master for master in cluster.masters if master is not source)
        names = {master: master.call("CLUSTER", "MYID").decode() for master in (source, target)}

        async def scenario() -> None:
            async with redis_client(cluster.url) as redis:
                await redis.sadd("{m}:stays", 1, 2)
                await redis.sadd("{m}:moved", 3)
                target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
                source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
                source.call("MIGRATE", "127.0.0.1", target.port, "{m}:moved", 0, 1000)
                async with redis.deadline(), redis.pipeline(transaction=False) as pipeline:
                    pipeline.smembers("{m}:stays")
                    pipeline.smembers("{m}:moved")
                    assert list(map(set, await pipeline.execute())) == [{b"1", b"2"}, {b"3"}]

        run(scenario())


def test_a_pool_whose_parts_grow_keeps_the_workers_that_moved(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.reader.part_follower.KEPT_SECONDS", 1.5)

    async def scenario() -> None:
        async with redis_client(redis_url) as redis, follower(redis_url) as mirror:
            async with indexer(redis_url, parts=1) as index:
                engines = [engine(index.address, f"w{number}") for number in range(6)]
                for worker in engines:
                    worker.store(1)
                port = index.port
                async with running(*(worker.publisher.run() for worker in engines)):
                    await eventually(lambda: in_step(mirror, *engines))
            await redis.flushall()
            streams = running(*(worker.publisher.run() for worker in engines))
            async with indexer(redis_url, parts=2, port=port), streams:
                await eventually(lambda: mirror.parts == 2 and in_step(mirror, *engines))
                # Until what part 0 kept of its former workers is given up.
                (first, _), *_ = mirror._parts
                await eventually(lambda: not first._kept)
                for worker in engines:
                    worker.store(2)
                await eventually(lambda: in_step(mirror, *engines))

    run(scenario())


def test_a_kick_is_not_undone_by_the_message_behind_it() -> None:
    async def scenario() -> None:
        metrics, gate = IndexerMetrics(CollectorRegistry()), InflightGate(1 << 20)
        with suppress(TimeoutError):
            async with asyncio.timeout(5) as end:
                store = FileStore(connect(RedisConfig()), metrics, limit_bytes=1)
                files = FileTransfers(store, metrics, enabled=True, ledger_up=lambda: True)
                leases = Leases(connect(RedisConfig()), connect(RedisConfig()), metrics)
                session = Session(
                    lambda *_: None, LoadTable(), metrics, end, gate, files, leases, peer="", ledger_up=lambda: True
                )
                session.kick("by the test")
                with pytest.raises(RefusedError, match="by the test"):
                    await session.answer(pb.PublishRequest(load=pb.Load()))
                await asyncio.sleep(2)
        assert end.expired()

    run(scenario())


class Slow(index_pb2_grpc.IndexServiceServicer):
    """An indexer that takes its time to acknowledge."""

    def __init__(self) -> None:
        self.streams = 0

    async def Publish(self, request_iterator, context):  # noqa: N802
        self.streams += 1
        async for request in request_iterator:
            match request.WhichOneof("body"):
                case "hello":
                    yield pb.PublishResponse(welcome=pb.Welcome(format_version=1, seq=0, snapshot_wanted=True))
                case "snapshot":
                    chunk = request.snapshot
                    yield pb.PublishResponse(ack=pb.Ack(seq=chunk.seq, chunk=chunk.chunk))
                case "delta":
                    await asyncio.sleep(0.15)
                    yield pb.PublishResponse(ack=pb.Ack(seq=request.delta.seq))

    async def Loads(self, request, context) -> None:  # noqa: N802
        raise NotImplementedError

    async def Describe(self, request, context) -> None:  # noqa: N802
        raise NotImplementedError


def test_a_stream_ends_by_age_though_something_is_always_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.publish.stream.AGE_SECONDS", (0.5, 0.5))

    async def change(worker) -> None:
        block = 0
        while True:
            block += 1
            worker.store(block)
            await asyncio.sleep(0.02)

    async def scenario() -> None:
        server, slow = grpc.aio.server(), Slow()
        index_pb2_grpc.add_IndexServiceServicer_to_server(slow, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            worker = engine(f"127.0.0.1:{port}", "w")
            async with running(worker.publisher.run(), change(worker)):
                await eventually(lambda: slow.streams >= 3)
        finally:
            await server.stop(0)

    with suppress(asyncio.CancelledError):
        run(scenario())
