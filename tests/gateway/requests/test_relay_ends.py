"""Ends that the gateway itself makes: the total time, the end of the grace, protocols that are not served."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from gateway.http.outcome import Outcome
from tests.gateway.http.support import SSE_HEAD, WITHIN, Link, chunk, gateway, request, run, worker
from tests.support import eventually

EVENT = b"data: 1\n\n"


def code_of(body: bytes) -> str:
    code = json.loads(body.strip().removeprefix(b"data: "))["error"]["code"]
    assert isinstance(code, str)
    return code


def test_a_stream_that_takes_longer_than_the_total_time_ends_with_an_error_event() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(SSE_HEAD)
        while True:
            await link.send(chunk(EVENT))
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with (
            worker(script) as engine,
            gateway(engine.port, engine.port, total_seconds=0.3) as gate,
            gate.client() as user,
        ):
            answer = await user.ask(request())
            events, _, error = answer.body.rpartition(EVENT)
            assert (answer.status, code_of(error)) == (200, "total_timeout")
            assert set(events.split(EVENT)) == {b""}
            assert b"[DONE]" not in answer.body
            assert await user.at_end()
            await eventually(lambda: engine.open == 0)
            result = await gate.result()
            # The worker is not to blame.
            assert (result.outcome, result.attempts) == (Outcome.CLIENT_GONE, 1)

    run(main())


def test_a_reply_that_has_not_begun_within_the_total_time_is_a_504_and_not_tried_again() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.peer_gone()

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port, engine.port, total_seconds=0.2) as gate:
            answer = await gate.ask(request())
            assert (answer.status, code_of(answer.body)) == (504, "worker_timeout")
            assert gate.assigner.outcomes == [Outcome.CLIENT_GONE]

    run(main())


@pytest.mark.parametrize("partial", [b"", b'data: {"unfini'])
def test_a_stream_that_is_cut_when_the_grace_ends_says_so(partial: bytes) -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(SSE_HEAD + chunk(EVENT) + (chunk(partial) if partial else b""))
        await link.peer_gone()

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as user:
            user.send(request())
            await user.head()
            draining = asyncio.get_running_loop().create_task(gate.server.drain(0.05))
            body = b""
            while data := await asyncio.wait_for(user.reader.read(65_536), 5):
                body += data
            await draining
            assert body.endswith(b"\r\n0\r\n\r\n")
            assert b'"code":"gateway_stopped"' in body
            assert b"[DONE]" not in body
            assert gate.assigner.outcomes == [Outcome.CLIENT_GONE]
            await eventually(lambda: engine.open == 0)

    run(main())


def test_a_websocket_is_refused_in_openai_shape() -> None:
    async def main() -> None:
        async with gateway() as gate, gate.client() as user:
            headers = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
            answer = await user.ask(request("GET", "/v1/realtime", b"", headers))
            assert (answer.status, code_of(answer.body)) == (400, "websocket_unsupported")
            assert await user.at_end()
            assert gate.assigner.given == []

    run(main())


GZIP_HEAD = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        (SSE_HEAD + chunk(EVENT) * 3 + chunk(EVENT * 20_000), 20_003),
        (GZIP_HEAD + chunk(bytes(4000)), 1000),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + bytes(40_000), 10_000),
    ],
    ids=["events", "compressed events", "by length"],
)
def test_how_much_of_a_reply_came_before_it_broke_off_is_known(reply: bytes, tokens: int) -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(reply)

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as user:
            user.send(request())
            await user.head()
            with suppress(ConnectionError):
                while await asyncio.wait_for(user.reader.read(65_536), WITHIN):
                    pass
            result = await gate.result()
            assert (result.outcome, result.exchange.reply_tokens) == (Outcome.BROKEN, tokens)

    run(main())
