"""How a stream of the indexer ends: its status arrives at once, whatever the stream was doing."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import grpc

from tests.indexer.support import POOL, hello, indexer, run
from tests.support import eventually
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

STREAMS = 60
# The longest wait for a status; without one the worker would wait for its own deadline of 15 s.
PROMPT_SECONDS = 4.0
ASKED = 500


async def status_after_hello(channel: grpc.aio.Channel, number: int) -> tuple[grpc.StatusCode, float]:
    stream = index_pb2_grpc.IndexServiceStub(channel).Publish()
    started_at = time.monotonic()
    await stream.write(pb.PublishRequest(hello=hello(worker_id=f"w{number}")))
    with suppress(grpc.aio.AioRpcError):
        while isinstance(await stream.read(), pb.PublishResponse):
            pass
    return await stream.code(), time.monotonic() - started_at


def test_streams_ended_at_the_moment_of_welcome_get_their_status(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, grpc.aio.insecure_channel(index.address) as channel:
            # As a beat does that finds the worker lost: the deadline ends the stream while Welcome is being written.
            converse = index.service._converse

            async def ended_early(session, context) -> None:
                write = context.write

                class EndsDuringWrite:
                    read = context.read

                    async def write(self, message) -> None:
                        session.kick("cut by the test")
                        await write(message)

                await converse(session, EndsDuringWrite())

            index.service._converse = ended_early
            ends = await asyncio.gather(*(status_after_hello(channel, number) for number in range(STREAMS)))
            assert {code for code, _ in ends} == {grpc.StatusCode.ABORTED}
            assert max(seconds for _, seconds in ends) < PROMPT_SECONDS
            assert not index.service.streams

    run(scenario())


def test_a_stream_whose_answers_nobody_reads_is_freed_and_gets_its_status_later(redis_url: str) -> None:
    async def scenario() -> None:
        async with (
            indexer(redis_url) as index,
            grpc.aio.insecure_channel(
                index.address, options=[("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
            ) as channel,
        ):
            stream = index_pb2_grpc.IndexServiceStub(channel).Publish()
            await stream.write(pb.PublishRequest(hello=hello()))
            await stream.read()
            await stream.write(pb.PublishRequest(snapshot=pb.SnapshotChunk(epoch=1, seq=1, last=True)))
            await stream.read()
            (session,) = index.sessions
            # Repeats of the stored number are acknowledged each time; nobody reads, so the answers fill the window,
            # while what asks for them fits in the indexer's.
            for _ in range(ASKED):
                await stream.write(pb.PublishRequest(delta=pb.Delta(epoch=1, seq=1)))
            deltas = partial(index.count, "deltas", pool=POOL)
            await eventually(stalled(deltas))
            assert deltas() < ASKED
            session.kick("cut by the test")
            await eventually(lambda: not index.service.streams)
            started_at = time.monotonic()
            with suppress(grpc.aio.AioRpcError):
                while isinstance(await stream.read(), pb.PublishResponse):
                    pass
            assert await stream.code() is grpc.StatusCode.ABORTED
            assert await stream.details() == "cut by the test"
            assert time.monotonic() - started_at < PROMPT_SECONDS

    run(scenario())


def stalled(count: Callable[[], float], polls: int = 50) -> Callable[[], bool]:
    """Whether a number above 0 has not changed for so many polls of 10 ms."""
    seen: deque[float] = deque(maxlen=polls)

    def condition() -> bool:
        seen.append(count())
        return len(seen) == polls and seen[0] == seen[-1] > 0

    return condition
