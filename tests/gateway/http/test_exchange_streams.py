"""Streamed replies: bytes unchanged, an end in every case, backpressure, many at once."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.http.outcome import Outcome
from tests.gateway.http.support import (
    LAST_CHUNK,
    SSE_HEAD,
    Link,
    chunk,
    client,
    gateway,
    plain,
    request,
    run,
    worker,
)
from tests.support import eventually

STREAMS = [
    b'data: {"a": 1}\n\ndata: [DONE]\n\n',
    b"data:1\r\n\r\ndata:2\r\n\r\n",
    ': ping\n\ndata: {"t": "日本 é 🙂"}\n\n'.encode(),
    b": only a comment\n\n",
    b"event: message_start\ndata: {}\n\nevent: x\ndata: {}",
    b"\n\n\ndata: after blank lines, no blank line at the end",
    b"data: 1\rdata: 2\r\r",
    b"",
]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("ends_with_connection", [False, True])
def test_bytes_come_as_they_were_when_split_at_every_byte(stream: bytes, ends_with_connection: bool) -> None:
    async def script(link: Link) -> None:
        await link.request()
        if ends_with_connection:
            await link.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            await link.trickle(stream)
        else:
            await link.trickle(SSE_HEAD + b"".join(chunk(bytes([byte])) for byte in stream) + LAST_CHUNK)

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate:
            answer = await gate.ask(request())
            assert answer.body == stream
            result = await gate.result()
            assert (result.outcome, result.tail, result.exchange.event_stream) == (Outcome.COMPLETED, stream, True)

    run(main())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.data())
def test_any_chunks_cut_anywhere(parts: list[bytes], data: st.DataObject) -> None:
    reply = SSE_HEAD + b"".join(map(chunk, parts)) + LAST_CHUNK
    cuts = sorted(data.draw(st.sets(st.integers(0, len(reply)), max_size=6)))

    async def script(link: Link) -> None:
        await link.request()
        for start, end in zip([0, *cuts], [*cuts, len(reply)], strict=True):
            await link.send(reply[start:end])
            await asyncio.sleep(0)

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate:
            assert (await gate.ask(request())).body == b"".join(parts)

    run(main())


def test_events_are_passed_on_as_they_come() -> None:
    async def main() -> None:
        go_on = asyncio.Semaphore(0)

        async def script(link: Link) -> None:
            await link.request()
            await link.send(SSE_HEAD)
            for number in range(3):
                await link.send(chunk(b"data: %d\n\n" % number))
                await go_on.acquire()
            await link.send(LAST_CHUNK)

        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as user:
            user.send(request())
            await user.head()
            for number in range(3):
                assert await asyncio.wait_for(user.reader.readuntil(b"\n\n\r\n"), 5) == chunk(b"data: %d\n\n" % number)
                go_on.release()
            assert await user.reader.readexactly(5) == LAST_CHUNK

    run(main())


def test_comments_are_not_held_without_bound() -> None:
    async def main() -> None:
        comments = b": ping\n\n" * 150_000

        async def script(link: Link) -> None:
            await link.request()
            await link.send(SSE_HEAD + chunk(comments))
            await link.peer_gone()

        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as user:
            user.send(request())
            await user.head()
            await asyncio.wait_for(user.reader.readuntil(comments[-1000:]), 5)

    run(main())


def test_a_response_that_is_only_announced_has_not_begun() -> None:
    """Else its prompt would count as computed at once, and a worker that dies in the middle of it could not be
    replaced."""
    announced = b'event: response.created\ndata: {"response": {"id": "resp_1"}}\n\n'
    begun = b"event: response.output_text.delta\ndata: {}\n\n"

    async def dying(link: Link) -> None:
        await link.request()
        await link.send(SSE_HEAD + chunk(announced))
        link.die()

    async def whole(link: Link) -> None:
        await link.request()
        await link.send(SSE_HEAD + chunk(announced) + chunk(begun) + LAST_CHUNK)

    async def main() -> None:
        async with worker(dying) as bad, worker(whole) as good, gateway(bad.port, good.port) as gate:
            async with gate.client() as user:
                answer = await user.ask(request())
            assert answer.body == announced + begun
            assert [(given.first_bytes, given.streamed) for given in gate.assigner.given] == [(0, None), (1, True)]

    run(main())


def test_a_reply_that_is_no_stream_is_not_told_as_one_whatever_the_client_asked_for() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(plain(b"{}"))

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as user:
            await user.ask(request(body=b'{"stream": true}'))
            assert [given.streamed for given in gate.assigner.given] == [False]

    run(main())


def test_a_stream_may_last_longer_than_its_longest_silence() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(SSE_HEAD)
        for _ in range(8):
            await link.send(chunk(b"data: 1\n\n"))
            await asyncio.sleep(0.08)
        await link.send(LAST_CHUNK)

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port, stream_idle_seconds=0.3) as gate:
            assert (await gate.ask(request())).body == b"data: 1\n\n" * 8

    run(main())


@pytest.mark.parametrize("how", ["reset", "end", "malformed", "silence"])
@pytest.mark.parametrize("partial", [b"", b'data: {"unfini'])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_that_dies_ends_with_an_error_event(how: str, partial: bytes, version: str) -> None:
    events = b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"

    async def main() -> None:
        relayed = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            await link.send(SSE_HEAD + b"".join(map(chunk, events)) + (chunk(partial) if partial else b""))
            await relayed.wait()
            if how == "reset":
                link.die()
            elif how == "malformed":
                await link.send(b"no chunk\r\n")
                await link.peer_gone()
            elif how == "silence":
                await link.peer_gone()

        async with (
            worker(script) as engine,
            gateway(engine.port, engine.port, stream_idle_seconds=0.2) as gate,
            gate.client() as user,
        ):
            user.send(request(version=version))
            await eventually(lambda: gate.assigner.given and gate.assigner.given[0].first_bytes)
            relayed.set()
            answer = await user.answer()
            sent = b"".join(events) + partial
            assert answer.body.startswith(sent)
            last = answer.body[len(sent) :].strip().removeprefix(b"data: ")
            assert json.loads(last)["error"]["code"] == "worker_lost"
            assert answer.body.endswith(b"\n\n")
            assert b"[DONE]" not in answer.body
            assert await user.at_end()
            result = await gate.result()
            assert (result.outcome, result.status, result.attempts) == (Outcome.BROKEN, 200, 1)
            assert result.tail == sent

    run(main())


@pytest.mark.parametrize(
    "begun",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"abc"),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100\r\n\r\ndata: 1\n\n",
        SSE_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n" + chunk(gzip.compress(b"data: 1\n\n")),
    ],
)
def test_a_body_that_dies_cuts_the_connection(begun: bytes) -> None:
    async def main() -> None:
        relayed = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            await link.send(begun)
            await relayed.wait()

        async with worker(script) as engine, gateway(engine.port, engine.port) as gate, gate.client() as user:
            user.send(request())
            await user.head()
            relayed.set()
            rest = b""
            with suppress(ConnectionResetError):
                while piece := await asyncio.wait_for(user.reader.read(1), 5):
                    rest += piece
            assert LAST_CHUNK not in rest
            assert gate.assigner.outcomes == [Outcome.BROKEN]

    run(main())


def test_a_client_that_does_not_read_pauses_its_worker_within_bounded_memory() -> None:
    total = 64 << 20
    piece = bytes(65_536)

    async def main() -> None:
        sent = 0

        async def script(link: Link) -> None:
            nonlocal sent
            await link.request()
            await link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
            while sent < total:
                await link.send(piece)
                sent += len(piece)

        async def stalled() -> bool:
            before = sent
            for _ in range(20):
                await asyncio.sleep(0.005)
            return sent == before > 0

        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as user:
            tracemalloc.start()
            try:
                user.send(request())
                await user.head()
                await eventually(stalled)
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert sent < total / 2  # the rest is in sockets' buffers, which the kernel bounds
            assert held < 4 << 20
            assert len(await asyncio.wait_for(user.reader.readexactly(total), 20)) == total
            assert (await gate.result()).outcome is Outcome.COMPLETED

    run(main())


def test_a_client_that_never_reads_again_is_cut() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await link.send(bytes(65_536))

    async def main() -> None:
        async with (
            worker(script) as engine,
            gateway(engine.port, stream_idle_seconds=0.3) as gate,
            gate.client() as user,
        ):
            user.writer.transport.pause_reading()  # type: ignore[attr-defined]
            user.send(request())
            result = await gate.result()
            assert result.outcome is Outcome.CLIENT_GONE
            await eventually(lambda: gate.server.connections == 0)

    run(main())


def test_many_slow_streams_at_once_and_a_health_check_among_them() -> None:
    streams = 300

    async def main() -> None:
        loop = asyncio.get_running_loop()
        finish = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            await link.send(SSE_HEAD + chunk(b"data: 0\n\n"))
            await finish.wait()
            for number in range(1, 20):
                await link.send(chunk(b"data: %d\n\n" % number))
            await link.send(LAST_CHUNK)

        async def stream(port: int, body: list[bytes]) -> None:
            async with client(port) as user:
                body.append((await user.ask(request())).body)

        async with worker(script) as engine, gateway(engine.port) as gate:
            bodies: list[bytes] = []
            tasks = [loop.create_task(stream(gate.server.port, bodies)) for _ in range(streams)]
            await eventually(lambda: sum(given.first_bytes for given in gate.assigner.given) == streams, within=30)
            assert engine.open == gate.server.connections == streams
            finish.set()
            async with gate.client() as probe:
                waits = []
                while len(bodies) < streams:
                    asked_at = loop.time()
                    assert (await probe.ask(request("GET", "/health", b""))).body == b"ok"
                    waits.append(loop.time() - asked_at)
            await asyncio.gather(*tasks)
            assert set(bodies) == {b"".join(b"data: %d\n\n" % number for number in range(20))}
            # The clients and the workers share this loop, so that a wait here is mostly theirs.
            assert sorted(waits)[len(waits) // 2] < 0.5
            assert gate.assigner.outcomes == [Outcome.COMPLETED] * streams

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4 * streams + 100:
        pytest.skip(f"needs {4 * streams + 100} file descriptors, the limit is {soft}")
    run(main())
