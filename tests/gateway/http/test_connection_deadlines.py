"""Deadlines of clients, and what else a connection does with time."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.http.message import Request
from gateway.http.reply import Reply
from tests.gateway.http.support import Client, client, request, run, serving
from tests.gateway.http.test_connection import echo
from tests.support import eventually


async def status_and_end(user: Client) -> int:
    status = (await user.answer()).status
    assert await user.at_end()
    return status


async def nothing_comes(user: Client, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(user.reader.readexactly(1), seconds)


def test_a_slow_request_within_its_deadline() -> None:
    async def main() -> None:
        async with serving(echo) as server, client(server.port) as user:
            for part in (b"POST / HTTP/1.1\r\nHo", b"st: h\r\nContent-Length: 4\r\n\r\n", b"ab"):
                user.send(part)
                await nothing_comes(user, 0.1)
            assert (await user.ask(b"cd")).body == b"POST / 4"

    run(main())


def test_deadlines_of_clients() -> None:
    async def main() -> None:
        async with serving(echo, client_idle_seconds=0.2, client_read_seconds=0.2) as server:
            async with client(server.port) as silent:
                assert await silent.at_end()
            async with client(server.port) as idle:
                await idle.ask(request())
                assert await idle.at_end()
            async with client(server.port) as blank:
                blank.send(b"\r\n")
                assert await blank.at_end()
            async with client(server.port) as slow:
                slow.send(b"POST / HTTP/1.1\r\nHos")
                assert await status_and_end(slow) == 408
            async with client(server.port) as slow:
                slow.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc")
                assert await status_and_end(slow) == 408
            async with client(server.port) as drip:
                drip.send(b"POST / HTTP/1.1\r\nHost: h\r\nX: ")
                reading = asyncio.ensure_future(status_and_end(drip))
                while not reading.done():  # a byte now and then must not move the deadline
                    drip.send(b"x")
                    await asyncio.wait({reading}, timeout=0.02)
                assert reading.result() == 408

    run(main())


def test_the_time_of_a_reply_does_not_count_against_the_next_request() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            if request.path == "/slow":
                await release.wait()
            await echo(request, reply)

        async with serving(handler, client_read_seconds=0.3) as server, client(server.port) as user:
            second = request(path="/second")
            user.send(request(path="/slow") + second[:-1])
            await asyncio.wait({asyncio.ensure_future(release.wait())}, timeout=0.5)
            release.set()
            assert (await user.answer()).body == b"POST /slow 2"
            await nothing_comes(user, 0.1)
            assert (await user.ask(second[-1:])).body == b"POST /second 2"

    run(main())


@pytest.mark.parametrize("rubbish", [b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 10, b"GET\r\n\r\n", b"hello\r\n"])
def test_rubbish(rubbish: bytes) -> None:
    async def main() -> None:
        async with serving(echo) as server:
            async with client(server.port) as user:
                user.send(rubbish)
                assert await status_and_end(user) == 400
            await eventually(lambda: server.connections == 0)

    run(main())


def test_small_replies_are_not_delayed() -> None:
    """Nagle's algorithm is off: asserted on the option, since times depend on the machine."""

    async def main() -> None:
        seen = []

        async def handler(request: Request, reply: Reply) -> None:
            seen.append(reply._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            reply.send(204)

        async with serving(handler) as server, client(server.port) as user:
            assert (await user.ask(request())).status == 204
            assert seen[0] != 0

    run(main())
