"""Describe, asked of real servers: with the shared token, with several replicas, with none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from tests.ports import free_ports
from warmroute.cli import index_streams
from warmroute.cli.index_streams import describe
from warmroute.config.grpc import GrpcConfig
from warmroute.rpc.security import ClientSecurity, ServerSecurity
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

OPEN = ClientSecurity(GrpcConfig())


class Replica(index_pb2_grpc.IndexServiceServicer):
    def __init__(self, *workers: pb.WorkerDescription) -> None:
        self.workers = workers
        self.asked: list[list[str]] = []

    async def Describe(self, request, context):  # noqa: N802 - the name is the contract's
        self.asked.append(list(request.pools))
        return pb.DescribeResponse(version="1.2", ledger_up=True, workers=self.workers)


@asynccontextmanager
async def serving(replica: Replica, token: str | None = None) -> AsyncIterator[str]:
    server = grpc.aio.server(interceptors=ServerSecurity(GrpcConfig(token=token)).interceptors)
    index_pb2_grpc.add_IndexServiceServicer_to_server(replica, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def worker(seconds: float, **load) -> pb.WorkerDescription:
    described = pb.WorkerDescription(pool="p", worker_id="w", stream_seconds=seconds, load_age_ms=250)
    if load:
        described.load.CopyFrom(pb.Load(**load))
    return described


def test_the_younger_stream_of_a_worker_that_moved_counts() -> None:
    async def scenario() -> None:
        old, new = Replica(worker(900, unpublished_ms=1)), Replica(worker(2, unpublished_ms=1500, orphaned_blocks=7))
        async with serving(old) as first, serving(new) as second:
            for order in ([first, second], [second, first, first]):
                replicas, streams = await describe(order, ["p"], OPEN)
                assert [(each.version, each.streams, each.error) for each in replicas] == [("1.2", 1, None)] * 2
                stream = streams["p", "w"]
                assert (stream.indexer, stream.publication_lag_seconds, stream.orphaned_blocks) == (second, 1.5, 7)
                assert stream.load_age_seconds == 0.25
        assert new.asked == [["p"], ["p"]]

    asyncio.run(scenario())


def test_before_its_first_load_nothing_is_known_of_it() -> None:
    async def scenario() -> None:
        async with serving(Replica(worker(0.5))) as address:
            _, streams = await describe([address], ["p"], OPEN)
            assert streams["p", "w"].load_age_seconds is None
            assert streams["p", "w"].unpublished_keys is None

    asyncio.run(scenario())


def test_the_token_goes_along_and_a_wrong_one_is_said() -> None:
    async def scenario() -> None:
        async with serving(Replica(), token="the-right-token") as address:
            (known,), _ = await describe([address], [], ClientSecurity(GrpcConfig(token="the-right-token")))
            assert known.error is None
            (refused,), _ = await describe([address], [], ClientSecurity(GrpcConfig(token="the-wrong-token")))
            assert refused.error is not None
            assert refused.error.startswith("unauthenticated")

    asyncio.run(scenario())


def test_what_does_not_answer_is_listed_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_streams, "ANSWER_SECONDS", 0.5)

    async def scenario() -> None:
        (nobody,) = free_ports(1)
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            async with serving(Replica()) as address:
                names = [f"127.0.0.1:{nobody}", "nowhere.invalid:1", address, f"127.0.0.1:{deaf.getsockname()[1]}"]
                replicas, _ = await describe(names, [], OPEN)
        errors = {each.address: each.error for each in replicas}
        assert errors.pop(address) is None
        assert "does not resolve" in (errors.pop("nowhere.invalid:1") or "")
        assert set(errors) == {names[0], names[3]}
        assert all(errors.values())

    asyncio.run(scenario())


def test_more_pools_than_a_request_takes_are_asked_for_as_all() -> None:
    async def scenario() -> None:
        replica = Replica()
        async with serving(replica) as address:
            await describe([address], map(str, range(2000)), OPEN)
        assert replica.asked == [[]]

    asyncio.run(scenario())
