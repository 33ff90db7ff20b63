"""Who may say Hello: leases on worker ids and addresses, alone and through real streams."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import msgpack
import pytest
from prometheus_client import CollectorRegistry

from indexer.layout import lease_key
from indexer.server import leases as leases_module
from indexer.server.leases import HeldError, Lease, Leases, lease_of
from indexer.server.metrics import IndexerMetrics
from tests.indexer.support import POOL, engine, follower, hello, in_step, indexer, last_status, run, running
from tests.support import eventually, redis_client
from warmroute.redis.client import Client
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

ADDRESS = "10.0.0.1:8100"
OURS, THEIRS = b"o" * 32, b"t" * 32
HOST, ELSEWHERE = "ipv4:10.0.0.1:40000", "ipv4:10.0.0.9:40000"


def store(redis: Client) -> Leases:
    return Leases(redis, redis, IndexerMetrics(CollectorRegistry()))


def lease(
    worker_id: str = "w", instance: bytes = OURS, peer: str = HOST, number: int = 1, address: str = ADDRESS
) -> Lease:
    return lease_of(POOL, worker_id, address, instance=instance, peer=peer, token=str(number))


async def is_refused(held: Leases, wanted: Lease) -> str | None:
    """The field that another holds."""
    try:
        await held.take(wanted)
    except HeldError as error:
        return error.field
    return None


def test_a_live_worker_keeps_its_id_and_its_address(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            held = store(redis)
            await held.take(lease())
            assert await is_refused(held, lease("other", THEIRS)) == "address"
            assert await is_refused(held, lease("w", THEIRS, address="10.0.0.9:8100")) == "worker_id"
            # A rank of it is it.
            assert await is_refused(held, lease("w/dp7", THEIRS, address="10.0.0.9:8100")) == "worker_id"
            assert await is_refused(held, lease("w", b"")) == "worker_id"
            # What was refused took nothing.
            assert await is_refused(held, lease("other", THEIRS, address="10.0.0.9:8100")) is None
            # Nor is another pool concerned.
            elsewhere = lease_of("q", "w", ADDRESS, instance=THEIRS, peer=ELSEWHERE, token="1")
            assert await is_refused(held, elsewhere) is None

    run(scenario())


def test_the_same_instance_comes_again_at_once_and_its_ranks_share_an_address(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            held = store(redis)
            for number, worker_id in enumerate(("w/dp0", "w/dp1", "w/dp0", "w")):
                await held.take(lease(worker_id, number=number, peer=ELSEWHERE))
            for number in (0, 1, 2):
                await held.give_back(lease(number=number))
            assert await is_refused(held, lease("other", THEIRS)) == "address"  # 3 lives
            await held.give_back(lease(number=3))
            assert await is_refused(held, lease("other", THEIRS, peer=ELSEWHERE)) is None

    run(scenario())


def test_after_its_end_who_comes_from_its_host_takes_its_place_and_others_wait(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            held = store(redis)
            await held.take(lease())
            await held.give_back(lease())
            assert await is_refused(held, lease(instance=THEIRS, peer=ELSEWHERE)) == "worker_id"
            assert await is_refused(held, lease(instance=THEIRS, number=2)) is None  # started again in its place
            monkeypatch.setattr(leases_module, "LEASE_SECONDS", 0.3)
            await held.give_back(lease(instance=THEIRS, number=2))

            async def is_free() -> bool:
                return await is_refused(held, lease("new", ELSEWHERE.encode(), ELSEWHERE)) is None

            await eventually(is_free)

    run(scenario())


def test_a_lease_that_nobody_renews_runs_out(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            held = store(redis)
            monkeypatch.setattr(leases_module, "LEASE_SECONDS", 0.5)
            await held.take(lease(number=0))

            async def is_free() -> bool:
                return await is_refused(held, lease(instance=THEIRS, peer=ELSEWHERE, number=2)) is None

            await eventually(is_free)
            # The one whose indexer was cut off meanwhile learns it; nobody else does.
            other = lease("x", address="10.0.0.2:1")
            assert await held.keep([other, lease(number=0), other]) == [1]

    run(scenario())


def test_what_redis_lost_or_another_program_wrote_is_taken_again(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            held = store(redis)
            await redis.sadd(lease_key(POOL, "worker_id", "w"), "a")
            await redis.set(lease_key(POOL, "address", ADDRESS), b"\xc1 no msgpack")
            assert await held.keep([lease()]) == []
            assert await is_refused(held, lease("other", THEIRS)) == "address"
            await redis.flushall()
            assert await held.keep([lease(str(number), address="") for number in range(600)]) == []
            assert await is_refused(held, lease("599", THEIRS, address="")) == "worker_id"

    run(scenario())


@asynccontextmanager
async def stream(address: str, worker_id: str, instance: bytes, at: str = ADDRESS):
    """A raw stream that has been welcomed."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = index_pb2_grpc.IndexServiceStub(channel).Publish()
        await call.write(pb.PublishRequest(hello=hello(worker_id=worker_id, address=at, instance=instance, epoch=7)))
        answer = await call.read()
        assert answer.WhichOneof("body") == "welcome"
        try:
            yield call
        finally:
            call.cancel()


def greeting(worker_id: str, instance: bytes, at: str = ADDRESS) -> pb.PublishRequest:
    return pb.PublishRequest(hello=hello(worker_id=worker_id, address=at, instance=instance, epoch=9, engine="false"))


def test_a_false_hello_for_a_live_workers_address_changes_nothing(redis_url: str) -> None:
    async def scenario() -> None:
        # Two indexers, and parts, so that the liar's record would lie elsewhere.
        async with (
            indexer(redis_url, parts=4) as first,
            indexer(redis_url, parts=4) as second,
            follower(redis_url) as mirror,
        ):
            worker = engine(first.address, "real", engine="vllm")
            async with running(worker.publisher.run()):
                worker.store(1)
                await eventually(lambda: in_step(mirror, worker))
                for index in (first, second):
                    for liar in ("liar-1", "liar-2", "liar-3", "real"):
                        error = await last_status(
                            index.address, greeting(liar, THEIRS, worker.publisher.identity.address)
                        )
                        field = "worker_id" if liar == "real" else "address"
                        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
                        assert (error.details() or "").startswith(f"hello.{field}: ")
                        assert "another live worker" in (error.details() or "")
                assert in_step(mirror, worker)
                assert mirror.mirror.workers["real"].engine == "vllm"
                assert worker.publisher.connected
                for index in (first, second):
                    labels = {"reason": "already_exists"}
                    assert index.registry.get_sample_value("warmroute_indexer_refusals_total", labels) == 4

    run(scenario())


def test_a_worker_that_is_started_again_in_its_place_is_welcome_at_once(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            loop = asyncio.get_running_loop()
            for number in range(3):
                began = loop.time()
                await eventually(lambda n=number: _comes(index.address, bytes([n + 1]) * 16))
                assert loop.time() - began < 5  # and not the 15 s of a lease

    run(scenario())


async def _comes(address: str, instance: bytes) -> bool:
    try:
        async with stream(address, "w", instance):
            return True
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise
        return False


def test_streams_of_one_instance_move_freely_between_indexers(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as first, indexer(redis_url) as second, AsyncExitStack() as stack:
            for index in (first, second, first):
                await stack.enter_async_context(stream(index.address, "w", OURS))

    run(scenario())


def test_a_stream_that_lost_its_place_ends(redis_url: str) -> None:
    """As after a split of Redis: the other one was welcomed there."""

    async def scenario() -> None:
        async with (
            indexer(redis_url) as index,
            redis_client(redis_url) as redis,
            stream(index.address, "w", OURS) as call,
        ):
            theirs = {"d": "theirs", "p": ELSEWHERE, "s": {"1": time.time() * 1000 + 60_000}}
            await redis.set(lease_key(POOL, "worker_id", "w"), msgpack.packb(theirs))
            assert await call.code() is grpc.StatusCode.ABORTED
            assert "by now" in await call.details()

    run(scenario())


def test_a_secret_that_is_none_is_refused_and_not_shown(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            for instance in (b"short-secret", b"long-secret" * 10):
                error = await last_status(index.address, greeting("w", instance))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "hello.instance" in (error.details() or "")
                assert "secret'" not in (error.details() or "")

    run(scenario())
