"""What worker and client get of each other, whatever the framing."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from gateway.http.outcome import Outcome
from tests.gateway.http.support import (
    LAST_CHUNK,
    SSE_HEAD,
    Link,
    Relayed,
    chunk,
    gateway,
    plain,
    replying,
    request,
    run,
    worker,
)


def test_the_head_goes_out_with_the_first_byte_only() -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        head_sent = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            await link.send(SSE_HEAD + chunk(b": ping\n\n"))
            head_sent.set()
            await go_on.wait()
            await link.send(chunk(b"data: 1\n\n") + LAST_CHUNK)

        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as client:
            client.send(request())
            await head_sent.wait()
            async with gate.client() as other:  # a round trip through the same loop: the head has been seen
                await other.ask(request("GET", "/health", b""))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.readexactly(1), 0.1)
            assert gate.assigner.given[0].first_bytes == 0
            go_on.set()
            answer = await client.answer()
            assert answer.body == b": ping\n\ndata: 1\n\n"
            assert gate.assigner.given[0].first_bytes == 1

    run(main())


def test_what_the_worker_is_sent() -> None:
    async def main() -> None:
        async with worker(replying(plain(b"ok"))) as engine, gateway(engine.port) as gate:
            sent = request(
                "POST",
                "/v1/x?a=b%20c",
                b"hello",
                [
                    "AUTHORIZATION: Bearer secret",
                    "X-API-Key: secret",
                    "Proxy-Authorization: Basic secret",
                    "Connection: keep-alive, X-Hop",
                    "X-Hop: gone",
                    "Keep-Alive: timeout=5",
                    "TE: trailers",
                    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                    "X-Mixed-Case: Value",
                    "X-Forwarded-For: 10.0.0.1",
                    "X-Forwarded-For: 10.0.0.2",
                    "X-Request-Id: abc",
                    "X-Twice: 1",
                    "X-Twice: 2",
                ],
            )
            answer = await gate.ask(sent)
            assert answer.header(b"x-request-id") == b"abc"
            (received,) = engine.requests
            assert received.start == b"POST /v1/x?a=b%20c HTTP/1.1"
            assert received.body == b"hello"
            assert sorted(received.headers) == [
                (b"content-length", b"5"),
                (b"host", b"127.0.0.1:%d" % engine.port),
                (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
                (b"x-forwarded-for", b"10.0.0.1, 10.0.0.2, 127.0.0.1"),
                (b"x-forwarded-proto", b"http"),
                (b"x-mixed-case", b"Value"),
                (b"x-request-id", b"abc"),
                (b"x-twice", b"1"),
                (b"x-twice", b"2"),
            ]

    run(main())


def test_what_the_client_gets() -> None:
    packed = gzip.compress(b"hello")
    reply = (
        b"HTTP/1.1 201 Made\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: engine\r\nSET-COOKIE: a=1\r\n"
        b"Set-Cookie: b=2\r\nContent-Encoding: gzip\r\nConnection: X-Hop\r\nX-Hop: gone\r\nKeep-Alive: timeout=9\r\n"
        b"X-Request-Id: theirs\r\nContent-Length: %d\r\n\r\n%b" % (len(packed), packed)
    )

    async def main() -> None:
        async with worker(replying(reply)) as engine, gateway(engine.port) as gate:
            answer = await gate.ask(request(headers=["x-request-id: mine"]))
            assert (answer.status, answer.body) == (201, packed)
            assert sorted(answer.headers) == [
                (b"content-encoding", b"gzip"),
                (b"content-length", b"%d" % len(packed)),
                (b"date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
                (b"server", b"engine"),
                (b"set-cookie", b"a=1"),
                (b"set-cookie", b"b=2"),
                (b"x-request-id", b"mine"),
                (b"x-warmroute-worker", b"w0"),
            ]
            result = await gate.result()
            assert (result.tail, result.exchange.content_encoding, result.exchange.event_stream) == (
                packed,
                b"gzip",
                False,
            )

    run(main())


REPLIES = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: t\r\n\r\n",
        b"hello",
    ),
    (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"hi",
    ),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", b""),
]


@pytest.mark.parametrize(("reply", "body"), REPLIES)
@pytest.mark.parametrize("slowly", [False, True])
def test_every_framing_of_a_reply(reply: bytes, body: bytes, slowly: bool) -> None:
    async def script(link: Link) -> None:
        while True:
            await link.request()
            await (link.trickle(reply) if slowly else link.send(reply))

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as client:
            for _ in range(3):
                assert (await client.ask(request())).body == body
            assert engine.accepted == 1
            assert gate.assigner.outcomes == [Outcome.COMPLETED] * 3
            assert gate.upstreams.idle == 1

    run(main())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_reply_that_ends_with_the_connection(version: str) -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(b"HTTP/1.1 200 OK\r\n\r\nhel")
        await link.send(b"lo")

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as client:
            answer = await client.ask(request(version=version))
            assert answer.body == b"hello"
            assert (answer.header(b"transfer-encoding") is None) == (version == "1.0")
            assert (await gate.result()).outcome is Outcome.COMPLETED
            if version == "1.0":
                assert await client.at_end()

    run(main())


def test_head_requests() -> None:
    async def script(link: Link) -> None:
        while True:
            await link.request()
            await link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")

    async def main() -> None:
        async with worker(script) as engine, gateway(engine.port) as gate, gate.client() as client:
            for _ in range(2):
                answer = await client.ask(request("HEAD", body=b""), bodiless=True)
                assert (answer.status, answer.header(b"content-length")) == (200, b"1234")
            assert gate.assigner.outcomes == [Outcome.COMPLETED] * 2

    run(main())


def test_the_result_of_a_relayed_reply() -> None:
    async def main() -> None:
        body = bytes(range(256)) * 4096
        async with worker(replying(plain(body))) as engine, gateway(engine.port) as gate:
            assert (await gate.ask(request())).body == body
            result = await gate.result()
            assert isinstance(result, Relayed)
            assert result.tail == body[-8192:]
            assert result.first_byte_at is not None
            assert result.first_byte_at >= result.request.arrived_at

    run(main())
