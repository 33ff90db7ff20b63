"""Kept connections to workers: reused when that is safe, and only then."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.http.message import Request
from gateway.http.outcome import Outcome
from gateway.http.reply import Reply
from gateway.http.upstream import UpstreamPool
from gateway.http.upstream_connection import UpstreamConnection, notice_death
from gateway.process.compiled import is_compiled
from gateway.requests.relay import relay
from tests.gateway.http.support import (
    TICK_SECONDS,
    CountingAssigner,
    Link,
    client,
    config,
    gateway,
    plain,
    replying,
    request,
    run,
    serving,
    worker,
)
from tests.support import eventually


def test_connections_are_reused() -> None:
    async def main() -> None:
        async with worker(replying(plain(b"hello"))) as engine, gateway(engine.port) as gate:
            for _ in range(5):
                assert (await gate.ask(request())).body == b"hello"
            assert engine.accepted == 1
            assert gate.upstreams.idle == gate.upstreams.connections == 1

    run(main())


def test_a_kept_connection_that_the_worker_closes_is_forgotten() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(plain(b"hello"))

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate:
            for number in range(1, 4):
                assert (await gate.ask(request())).body == b"hello"
                await eventually(lambda: gate.upstreams.connections == 0)
                assert engine.accepted == number

    run(main())


def test_a_kept_connection_that_dies_under_a_request_is_replaced_once_by_a_new_one_to_the_same_worker() -> None:
    async def main() -> None:
        live = 1

        async def script(link: Link) -> None:
            """The first `live` requests of all are answered; then connections die with the next request."""
            nonlocal live
            while True:
                await link.request()
                if live == 0:
                    live = 1
                    link.die()
                    return
                live -= 1
                await link.send(plain(b"hello"))

        async with worker(script) as engine, gateway(engine.port, engine.port) as gate:
            assert (await gate.ask(request())).body == b"hello"
            assert (await gate.ask(request())).body == b"hello"
            assert engine.accepted == 2
            assert len(engine.requests) == 3
            assert gate.assigner.outcomes == [Outcome.COMPLETED] * 2
            assert [result.attempts for result in gate.results] == [1, 1]

    run(main())


class LatePool(UpstreamPool):
    """Gives new connections away only when they are lost again, as a busy loop does."""

    async def connect(self, host: str, port: int) -> UpstreamConnection:
        connection = await super().connect(host, port)
        await eventually(lambda: not connection.usable)
        return connection


@pytest.mark.skipif(is_compiled(), reason="compiled classes have no subclasses")
def test_a_new_connection_that_dies_before_the_request_is_sent() -> None:
    async def script(link: Link) -> None:
        link.die()

    async def main() -> None:
        async with worker(script) as engine:
            assigner = CountingAssigner(engine.port)
            upstreams = LatePool(config())

            async def handler(request: Request, reply: Reply) -> None:
                await relay(request, request.body, reply, assigner, upstreams)

            async with serving(handler) as server, client(server.port) as user:
                assert (await user.ask(request())).status == 502
            assert assigner.outcomes == [Outcome.UNREACHABLE]
            assert upstreams.connections == 0

    run(main())


def test_a_new_connection_that_dies_is_not_replaced() -> None:
    async def script(link: Link) -> None:
        await link.request()
        link.die()

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate:
            assert (await gate.ask(request())).status == 502
            assert engine.accepted == 1
            assert gate.assigner.outcomes == [Outcome.UNREACHABLE]

    run(main())


def test_a_kept_connection_that_dies_within_a_reply_is_a_failure() -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(plain(b"hello"))
        await link.request()
        await link.send(b"HTTP/1.1 2")
        await asyncio.sleep(0)
        link.die()

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate:
            assert (await gate.ask(request())).body == b"hello"
            # The piece of a head arrives before the reset, or is thrown away with it: both are seen in the field.
            answer = await gate.ask(request())
            assert (answer.status, engine.accepted) in {(502, 1), (200, 2)}

    run(main())


def test_both_die() -> None:
    async def main() -> None:
        answered = False

        async def script(link: Link) -> None:
            nonlocal answered
            await link.request()
            if not answered:
                answered = True
                await link.send(plain(b"hello"))
                await link.request()
            link.die()

        async with worker(script) as engine, gateway(engine.port) as gate:
            assert (await gate.ask(request())).body == b"hello"
            assert (await gate.ask(request())).status == 502
            assert engine.accepted == 2
            assert gate.assigner.outcomes == [Outcome.COMPLETED, Outcome.UNREACHABLE]

    run(main())


def test_bytes_after_a_reply_are_never_taken_for_the_next() -> None:
    poisoned = plain(b"hello") + plain(b"POISON")

    async def main() -> None:
        async with worker(replying(poisoned)) as engine, gateway(engine.port) as gate, gate.client() as user:
            for number in range(1, 4):
                assert (await user.ask(request())).body == b"hello"
                assert engine.accepted == number
            assert gate.upstreams.idle == 0

    run(main())


def test_bytes_that_nobody_asked_for_end_a_kept_connection() -> None:
    async def main() -> None:
        poison = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            await link.send(plain(b"hello"))
            await poison.wait()
            await link.send(plain(b"POISON"))
            await link.peer_gone()

        async with worker(script) as engine, gateway(engine.port) as gate:
            assert (await gate.ask(request())).body == b"hello"
            poison.set()
            await eventually(lambda: gate.upstreams.connections == 0)
            assert (await gate.ask(request())).body == b"hello"
            assert engine.accepted == 2

    run(main())


def test_connections_that_must_not_be_reused() -> None:
    async def main() -> None:
        for reply in (
            plain(b"hello", headers=b"Connection: close\r\n"),
            b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        ):
            async with worker(replying(reply)) as engine, gateway(engine.port) as gate:
                for number in range(1, 4):
                    assert (await gate.ask(request())).body == b"hello"
                    assert engine.accepted == number

    run(main())


def test_a_reply_before_the_upload_was_taken_ends_the_connection() -> None:
    async def script(link: Link) -> None:
        await link.reader.readuntil(b"\r\n\r\n")
        await link.send(plain(b"too much", b"413 Too Large"))
        await link.peer_gone()

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate:
            for number in range(1, 3):
                answer = await gate.ask(request(body=bytes(16 << 20)))
                assert (answer.status, answer.body) == (413, b"too much")
                assert engine.accepted == number

    run(main())


def test_idle_connections_expire() -> None:
    async def main() -> None:
        async with (
            worker(replying(plain(b"hello"))) as engine,
            gateway(engine.port, upstream_idle_seconds=0.1) as gate,
        ):
            assert (await gate.ask(request())).body == b"hello"
            assert gate.upstreams.idle == 1
            await eventually(lambda: gate.upstreams.connections == 0)
            await eventually(lambda: engine.open == 0)

    run(main())


def test_a_large_upload_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000

    async def main() -> None:
        async with worker(replying(plain(b"ok"))) as engine, gateway(engine.port) as gate:
            assert (await gate.ask(request(body=body))).body == b"ok"
            assert engine.requests[0].body == body

    run(main())


def test_a_connection_that_is_made_while_its_client_leaves_is_forgotten() -> None:
    """Cancelled at every turn of the loop while it is made."""

    async def main() -> None:
        async with worker(replying(plain(b"hello"))) as engine:
            pool = UpstreamPool(config(), tick_seconds=TICK_SECONDS)
            for turns in range(12):
                for _ in range(20):
                    connecting = asyncio.ensure_future(pool.connect("127.0.0.1", engine.port))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    connecting.cancel()
                    await asyncio.gather(connecting, return_exceptions=True)
                    if not connecting.cancelled():
                        connecting.result().abort()
            await eventually(lambda: pool.connections == 0)
            await pool.close()

    run(main())


@pytest.mark.parametrize("status", [600, 700, 999])
def test_a_status_of_no_class_is_no_reply(status: int) -> None:
    async def main() -> None:
        odd = replying(b"HTTP/1.1 %d Odd\r\ncontent-length: 2\r\n\r\nhi" % status)
        async with worker(odd) as engine, gateway(engine.port) as gate:
            assert (await gate.ask(request())).status == 502

    run(main())


def test_what_looks_like_the_gateways_own_headers_is_not_repeated() -> None:
    async def main() -> None:
        claims = (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Warmroute-Worker: another\r\nx-warmroute-matched-tokens: 9\r\n"
            b"X-WARMROUTE-Decision: {}\r\nx-request-id: theirs\r\nx-kept: 1\r\n\r\nhi"
        )
        async with worker(replying(claims)) as engine, gateway(engine.port) as gate:
            reply = await gate.ask(request())
            names = [name for name, _ in reply.headers]
            assert b"x-kept" in names
            assert not any(value in (b"another", b"9", b"{}", b"theirs") for _, value in reply.headers)

    run(main())


def test_given_up_are_requests_whose_replies_have_not_begun() -> None:
    async def main() -> None:
        async def script(link: Link) -> None:
            await link.request()
            await asyncio.Event().wait()

        async with worker(script) as engine, gateway(engine.port) as gate:
            waiting = asyncio.ensure_future(gate.ask(request()))
            await eventually(lambda: engine.accepted == 1)
            assert gate.upstreams.give_up("127.0.0.1", engine.port + 1) == 0
            await eventually(lambda: gate.upstreams.give_up("127.0.0.1", engine.port) == 1)
            assert (await waiting).status in {502, 504}
            assert gate.upstreams.give_up("127.0.0.1", engine.port) == 0

    run(main())


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has this option")
def test_a_workers_socket_notices_that_its_host_is_gone() -> None:
    with socket.socket() as own:
        notice_death(own)
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    notice_death(None)
