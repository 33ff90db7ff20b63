"""Bodies are bounded over all connections, from their first byte until their reply begins, and clients share that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.http.reply import Reply
from gateway.http.server import Server
from gateway.http.uploads import Holding, Reason, Uploads
from tests.gateway.http.support import TICK_SECONDS, WITHIN, Client, client, config, request, run
from tests.support import eventually

LIMIT = 100_000
PART = 60_000
"""Of a body of LIMIT bytes; two of these are too much."""


def upload(sender: str = "a", part: int = PART, *headers: str) -> bytes:
    lines = ["POST / HTTP/1.1", "Host: h", f"X-Client: {sender}", f"Content-Length: {LIMIT}", *headers, "", ""]
    return "\r\n".join(lines).encode() + bytes(part)


def sender(head: Request) -> str:
    """Whoever the head names; nobody without a name."""
    name = head.header(b"x-client")
    if name is None:
        raise RequestError(401, "who are you?", "invalid_api_key")
    return name.decode()


async def size(request: Request, reply: Reply) -> None:
    reply.send(200, (), b"%d" % len(request.body))


@asynccontextmanager
async def serving(handler: Any = size, **fields: Any) -> AsyncIterator[tuple[Server, list[Reason]]]:
    refused: list[Reason] = []
    settings = config(**{"uploads_limit_bytes": LIMIT, "body_limit_bytes": LIMIT, **fields})
    server = Server(handler, settings, check_head=sender, on_body_refusal=refused.append, tick_seconds=TICK_SECONDS)
    await server.start()
    try:
        yield server, refused
    finally:
        await server.drain(0.0)
        assert (server.connections, server.body_bytes) == (0, 0)


@asynccontextmanager
async def crowd(server: Server, count: int) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(client(server.port)) for _ in range(count)]


async def refusal(connection: Client) -> tuple[int, str]:
    answer = await connection.answer()
    assert await connection.at_end()
    return answer.status, json.loads(answer.body)["error"]["code"]


def test_the_slowest_upload_gives_way_and_a_newcomer_goes_on() -> None:
    async def main() -> None:
        async with serving() as (server, refused), client(server.port) as slow, client(server.port) as newcomer:
            slow.send(upload())
            await eventually(lambda: server.body_bytes == PART)
            newcomer.send(upload("b"))
            assert await refusal(slow) == (503, "overloaded")
            assert server.body_bytes == PART
            assert (await newcomer.ask(bytes(LIMIT - PART))).body == b"%d" % LIMIT
            assert refused == ["total"]

    run(main())


def test_the_client_that_holds_most_gives_way_however_fast_it_is() -> None:
    async def main() -> None:
        async with serving(uploads_limit_bytes=2 * LIMIT) as (server, refused), crowd(server, 3) as (other, one, two):
            other.send(upload("other"))
            await eventually(lambda: server.body_bytes == PART)
            one.send(upload("greedy", 75_000))
            await eventually(lambda: server.body_bytes == PART + 75_000)
            two.send(upload("greedy", 76_000))
            await eventually(lambda: refused)
            assert server.body_bytes in {PART + 75_000, PART + 76_000}
            assert (await other.ask(bytes(LIMIT - PART))).status == 200

    run(main())


def test_a_clients_own_bound_is_a_429() -> None:
    async def main() -> None:
        limits = {"uploads_limit_bytes": 10 * LIMIT, "client_uploads_limit_bytes": LIMIT}
        async with serving(**limits) as (server, refused), crowd(server, 3) as (other, one, two):
            other.send(upload("other"))
            one.send(upload())
            await eventually(lambda: server.body_bytes == 2 * PART)
            two.send(upload())
            await eventually(lambda: refused == ["client"])
            assert server.body_bytes == 2 * PART
            gone = [answer async for answer in _answered(one, two)]
            assert gone == [429]
            assert (await other.ask(bytes(LIMIT - PART))).status == 200

    run(main())


async def _answered(*connections: Client) -> AsyncIterator[int]:
    for connection in connections:
        try:
            answer = await asyncio.wait_for(connection.answer(), 0.5)
        except TimeoutError:
            continue
        yield answer.status


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"POST / HTTP/1.0\r\nContent-Length: 100000\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n" + bytes(50_000),
    ],
    ids=["announced", "expect", "chunked", "1.0", "whole"],
)
def test_a_stranger_is_refused_by_the_head(head: bytes) -> None:
    async def main() -> None:
        async with serving() as (server, refused), client(server.port) as stranger:
            stranger.send(head)
            assert await refusal(stranger) == (401, "invalid_api_key")
            assert (refused, server.body_bytes) == (["head"], 0)

    run(main())


def test_100_continue_is_sent_to_who_may_send() -> None:
    async def main() -> None:
        async with serving() as (server, _), client(server.port) as known:
            known.send(upload("a", 0, "Expect: 100-continue"))
            assert (await known.head()).status == 100
            assert (await known.ask(bytes(LIMIT))).status == 200

    run(main())


def test_a_refusal_behind_a_request_in_progress_waits_for_its_reply() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            await asyncio.wait_for(go.wait(), WITHIN)
            reply.send(200, (), b"done")

        async with serving(handler) as (server, refused), client(server.port) as pipelining:
            pipelining.send(request("POST", "/", b"x", ["X-Client: a"]))
            pipelining.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n")
            await eventually(lambda: refused == ["head"])
            go.set()
            assert (await pipelining.answer()).body == b"done"
            assert await refusal(pipelining) == (401, "invalid_api_key")

    run(main())


def test_bytes_count_until_the_reply_begins() -> None:
    async def main() -> None:
        begin, end = asyncio.Event(), asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            await asyncio.wait_for(begin.wait(), WITHIN)
            reply.start(200, (), 4, b"ab")
            await asyncio.wait_for(end.wait(), WITHIN)
            reply.write(b"cd")
            reply.finish()

        async with serving(handler) as (server, refused), client(server.port) as first:
            async with client(server.port) as second:
                first.send(upload("a", LIMIT))
                await eventually(lambda: server.body_bytes == LIMIT)
                # What is whole cannot give way.
                second.send(upload("b", 20_000))
                assert await refusal(second) == (503, "overloaded")
            begin.set()
            await eventually(lambda: server.body_bytes == 0)
            async with client(server.port) as third:
                third.send(upload("b", 20_000))
                await eventually(lambda: server.body_bytes == 20_000)
                end.set()
                assert (await first.answer()).body == b"abcd"
            await eventually(lambda: server.body_bytes == 0)
            assert refused == ["total"]

    run(main())


def test_a_large_body_arrives_as_it_was_sent() -> None:
    async def main() -> None:
        seen: list[bytes] = []

        async def handler(request: Request, reply: Reply) -> None:
            seen.append(request.body)
            assert request.parts is None
            reply.send(200, (), b"")

        body = bytes(range(256)) * 12_000
        limits = {"uploads_limit_bytes": 1 << 24, "body_limit_bytes": 1 << 22}
        async with serving(handler, **limits) as (server, _), client(server.port) as sent:
            for _ in range(2):
                assert (await sent.ask(request("POST", "/", body, ["X-Client: a"]))).status == 200
        assert seen == [body, body]

    run(main())


def test_many_slow_uploads_of_one_client_do_not_hold_up_anothers() -> None:
    async def main() -> None:
        async with serving() as (server, _), crowd(server, 8) as slow, client(server.port) as other:
            for number, connection in enumerate(slow):
                connection.send(upload("crowd", 17_000 + number))
            await eventually(lambda: server.body_bytes > LIMIT - 20_000)
            for _ in range(5):
                answer = await other.ask(request("POST", "/", bytes(50_000), ["X-Client: other"]))
                assert (answer.status, answer.body) == (200, b"50000")

    run(main())


STEPS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(0, 60), st.booleans()), max_size=60)


@given(STEPS)
def test_the_bounds_hold_as_long_as_anything_can_give_way(steps: list[tuple[int, str, int, bool]]) -> None:
    uploads = Uploads(100, 70)
    holdings: list[Holding] = []

    def giving_way(number: int) -> Holding:
        def give_way(error: RequestError) -> None:
            assert error.status in {429, 503}
            uploads.hold(holdings[number], holdings[number].client, 0, arriving=False)

        return Holding(give_way)

    holdings += [giving_way(number) for number in range(6)]
    for now, (number, name, size, arriving) in enumerate(steps):
        uploads.hold(holdings[number], name, size, arriving=arriving and size > 0)
        uploads.make_room(name, float(now))
        assert uploads.bytes == sum(holding.bytes for holding in holdings)
        held = {name: sum(h.bytes for h in holdings if h.client == name) for name in "abc"}
        waiting = {name: any(h.arriving for h in holdings if h.client == name) for name in "abc"}
        assert uploads.bytes <= 100 or not any(waiting.values())
        assert held[name] <= 70 or not waiting[name]
    for holding in holdings:
        uploads.hold(holding, holding.client, 0, arriving=False)
    assert (uploads.bytes, uploads.clients) == (0, 0)


def test_the_settings() -> None:
    assert config().uploads_limit_bytes == 1 << 30
    assert config().client_uploads_limit == 1 << 29
    assert config(body_limit_bytes=2048, uploads_limit_bytes=2048).client_uploads_limit == 2048
    with pytest.raises(ValidationError, match="less than body_limit_bytes"):
        config(body_limit_bytes=2048, uploads_limit_bytes=2047)
    with pytest.raises(ValidationError, match="client_uploads_limit_bytes: less than"):
        config(body_limit_bytes=2048, client_uploads_limit_bytes=2047)
