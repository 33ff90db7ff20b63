"""Which worker is tried when, what reaches the client, and that bookings are freed exactly once."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket

import pytest

from gateway.entrypoint.errors import send_error
from gateway.entrypoint.http import Request
from gateway.entrypoint.relay import RelayResult, relay
from gateway.entrypoint.reply import Reply
from gateway.entrypoint.upstream import UpstreamPool
from gateway.routing.assignment import Outcome
from tests.gateway.entrypoint.support import (
    LAST_CHUNK,
    SSE_HEAD,
    CountingAssigner,
    Link,
    Message,
    Script,
    chunk,
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


def error_of(message: Message) -> dict[str, str | None]:
    assert message.header(b"content-type") == b"application/json"
    error = json.loads(message.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


async def refuse_to_read(link: Link) -> None:
    link.die()


async def close_after_request(link: Link) -> None:
    await link.request()


async def die_after_request(link: Link) -> None:
    await link.request()
    link.die()


async def die_within_head(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 200 OK\r\nContent-Le")


async def die_after_head(link: Link) -> None:
    await link.request()
    await link.send(SSE_HEAD)


async def die_after_comment(link: Link) -> None:
    await link.request()
    await link.send(SSE_HEAD + chunk(b": ping\n\n"))


async def stall(link: Link) -> None:
    await link.request()
    await link.peer_gone()


async def stall_after_head(link: Link) -> None:
    await link.request()
    await link.send(SSE_HEAD + chunk(b": ping\n\n"))
    await link.peer_gone()


async def garbage(link: Link) -> None:
    await link.request()
    await link.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    await link.peer_gone()


async def endless_head(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await link.send(b"X-Filler: " + b"x" * 1000 + b"\r\n")


async def two_framings(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    await link.peer_gone()


async def long_refusal(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
    await link.peer_gone()


async def switch_protocols(link: Link) -> None:
    await link.request()
    await link.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n")
    await link.peer_gone()


FAILURES: list[tuple[Script, Outcome, int, str]] = [
    (refuse_to_read, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (close_after_request, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (die_after_request, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (die_within_head, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (die_after_head, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (die_after_comment, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (garbage, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (endless_head, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (two_framings, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (switch_protocols, Outcome.UNREACHABLE, 502, "worker_unreachable"),
    (stall, Outcome.UNREACHABLE, 504, "worker_timeout"),
    (stall_after_head, Outcome.UNREACHABLE, 504, "worker_timeout"),
    (long_refusal, Outcome.SERVER_ERROR, 503, "worker_refused"),
]


@pytest.mark.parametrize(("script", "outcome", "status", "code"), FAILURES)
def test_before_the_first_byte_the_next_worker_is_tried(
    script: Script, outcome: Outcome, status: int, code: str
) -> None:
    async def main() -> None:
        async with (
            worker(script) as bad,
            worker(replying(plain(b"hello"))) as good,
            gateway(bad.port, good.port, first_byte_seconds=0.3) as gate,
        ):
            answer = await gate.ask(request(body=b'{"a": 1}'))
            assert (answer.status, answer.body) == (200, b"hello")
            assert answer.header(b"x-warmroute-worker") == b"w1"
            result = await gate.result()
            assert gate.assigner.outcomes == [outcome, Outcome.COMPLETED]
            assert gate.assigner.excluded == [set(), {"w0"}]
            assert (result.status, result.worker_id, result.attempts) == (200, "w1", 2)
            assert good.requests[0].body == b'{"a": 1}'

    run(main())


@pytest.mark.parametrize(("script", "outcome", "status", "code"), FAILURES)
def test_when_none_is_left_the_client_gets_an_error_in_openai_shape(
    script: Script, outcome: Outcome, status: int, code: str
) -> None:
    async def main() -> None:
        async with worker(script) as bad, gateway(bad.port, bad.port, first_byte_seconds=0.2) as gate:
            answer = await gate.ask(request())
            assert answer.status == status
            assert error_of(answer)["code"] == code
            assert answer.header(b"x-request-id")
            result = await gate.result()
            assert gate.assigner.outcomes == [outcome, outcome]
            assert (result.status, result.outcome, result.attempts) == (status, outcome, 2)
            assert result.first_byte_at is None
            assert result.tail == b""

    run(main())


def test_a_port_that_nobody_listens_on() -> None:
    async def main() -> None:
        async with worker(stall) as gone:
            pass
        async with gateway(gone.port) as gate:
            assert error_of(await gate.ask(request()))["code"] == "worker_unreachable"
            assert gate.assigner.outcomes == [Outcome.UNREACHABLE]

    run(main())


def test_no_worker_at_all() -> None:
    async def main() -> None:
        async with gateway() as gate:
            answer = await gate.ask(request())
            assert (answer.status, error_of(answer)["code"]) == (503, "no_worker")
            assert answer.header(b"retry-after") == b"1"
            result = await gate.result()
            assert (result.status, result.outcome, result.worker_id, result.attempts) == (503, None, None, 0)

    run(main())


def test_attempts_are_bounded() -> None:
    async def main() -> None:
        async with worker(die_after_request) as bad, gateway(*[bad.port] * 5, attempts=2) as gate:
            assert (await gate.ask(request())).status == 502
            assert gate.assigner.outcomes == [Outcome.UNREACHABLE] * 2

    run(main())


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_worker_that_is_overloaded_is_followed_by_the_next_and_passed_through_when_it_is_the_last(
    status: int,
) -> None:
    refusal = plain(b'{"detail": "busy"}', b"%d Busy" % status, b"Retry-After: 7\r\n")

    async def main() -> None:
        async with (
            worker(replying(refusal)) as busy,
            worker(replying(plain(b"hello"))) as good,
            worker(die_after_request) as dead,
        ):
            async with gateway(busy.port, good.port) as gate:
                assert (await gate.ask(request())).body == b"hello"
                assert gate.assigner.outcomes == [Outcome.SERVER_ERROR, Outcome.COMPLETED]
            async with gateway(dead.port, busy.port) as gate:
                answer = await gate.ask(request())
                assert (answer.status, answer.body) == (status, b'{"detail": "busy"}')
                assert answer.header(b"retry-after") == b"7"
                assert answer.header(b"x-warmroute-worker") == b"w1"
                assert gate.assigner.outcomes == [Outcome.UNREACHABLE, Outcome.SERVER_ERROR]
                assert [given.first_bytes for given in gate.assigner.given] == [0, 0]
            async with gateway(busy.port, dead.port) as gate:
                assert error_of(await gate.ask(request()))["code"] == "worker_unreachable"

    run(main())


@pytest.mark.parametrize(
    ("status", "outcome"), [(400, Outcome.REFUSED), (429, Outcome.REFUSED), (500, Outcome.SERVER_ERROR)]
)
def test_other_errors_of_a_worker_pass_through_without_another_attempt(status: int, outcome: Outcome) -> None:
    async def main() -> None:
        async with worker(replying(plain(b"no", b"%d No" % status))) as bad, gateway(bad.port, bad.port) as gate:
            answer = await gate.ask(request())
            assert (answer.status, answer.body) == (status, b"no")
            result = await gate.result()
            assert (result.status, result.outcome, result.attempts) == (status, outcome, 1)

    run(main())


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
            assert (result.tail, result.content_encoding, result.event_stream) == (packed, b"gzip", False)

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
            assert isinstance(result, RelayResult)
            assert result.tail == body[-8192:]
            assert result.first_byte_at is not None
            assert result.first_byte_at >= result.started_at

    run(main())


PHASES: dict[str, tuple[bytes, int]] = {
    "before the head": (b"", 499),
    "after the head": (SSE_HEAD, 499),
    "after a comment": (SSE_HEAD + chunk(b": ping\n\n"), 499),
    "in the stream": (SSE_HEAD + chunk(b"data: 1\n\n"), 200),
    "in a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", 200),
    "in a refusal": (b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nabc", 499),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("politely", [False, True])
def test_a_client_that_leaves_ends_the_workers_request_at_once(phase: str, politely: bool) -> None:
    sent, status = PHASES[phase]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiting = asyncio.Event()
        cut_at: list[float] = []

        async def script(link: Link) -> None:
            await link.request()
            await link.send(sent)
            waiting.set()
            await link.peer_gone()
            cut_at.append(loop.time())

        async with worker(script) as engine, gateway(engine.port, engine.port) as gate, gate.client() as client:
            client.send(request())
            await waiting.wait()
            if status == 200:
                await client.head()
            left_at = loop.time()
            if politely:
                client.writer.close()
            else:
                client.leave()
            result = await gate.result()
            assert (result.status, result.outcome, result.attempts) == (status, Outcome.CLIENT_GONE, 1)
            await eventually(lambda: cut_at)
            assert cut_at[0] - left_at < 0.1 + 0.4  # the promise, and what a busy test machine may add

    run(main())


def test_a_client_that_leaves_while_its_worker_is_being_connected() -> None:
    async def main() -> None:
        # A listener that never accepts, with a full backlog: connecting hangs.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            try:
                async with gateway(port, port, connect_seconds=30) as gate, gate.client() as client:
                    client.send(request())
                    await eventually(lambda: gate.assigner.open)
                    client.leave()
                    result = await asyncio.wait_for(gate.result(), 1)
                    assert (result.status, result.outcome, result.attempts) == (499, Outcome.CLIENT_GONE, 1)
                async with gateway(port, port, connect_seconds=0.1) as gate:
                    answer = await gate.ask(request())
                    assert (answer.status, error_of(answer)["code"]) == (504, "worker_timeout")
                    assert gate.assigner.outcomes == [Outcome.UNREACHABLE] * 2
            finally:
                for filler in fillers:
                    filler.close()

    run(main())


@pytest.mark.parametrize("phase", PHASES)
def test_a_handler_that_is_cancelled_leaves_nothing_behind(phase: str) -> None:
    sent, _ = PHASES[phase]

    async def main() -> None:
        cut = asyncio.Event()
        waiting = asyncio.Event()

        async def script(link: Link) -> None:
            await link.request()
            await link.send(sent)
            waiting.set()
            await link.peer_gone()
            cut.set()

        async with worker(script) as engine:
            assigner = CountingAssigner(engine.port)
            upstreams = UpstreamPool(config())

            async def handler(request: Request, reply: Reply) -> None:
                relaying = asyncio.ensure_future(relay(request, request.body, reply, assigner, upstreams, config()))
                await waiting.wait()
                relaying.cancel()
                await asyncio.wait({relaying})
                assert relaying.cancelled()
                if not reply.started:
                    send_error(reply, 418, "changed its mind")

            async with serving(handler) as server, client(server.port) as user:
                user.send(request())
                await asyncio.wait_for(cut.wait(), 5)
                assert assigner.outcomes == [Outcome.CLIENT_GONE]
                assert upstreams.idle == 0

    run(main())


def test_the_grace_ends_with_requests_in_every_phase() -> None:
    async def main() -> None:
        waiting = 0

        async def script(link: Link) -> None:
            nonlocal waiting
            await link.request()
            await link.send(list(PHASES.values())[waiting % len(PHASES)][0])
            waiting += 1
            await link.peer_gone()

        async with worker(script) as engine, gateway(engine.port) as gate:
            clients = [gate.client() for _ in range(12)]
            for entered in [await client.__aenter__() for client in clients]:
                entered.send(request())
            await eventually(lambda: waiting == 12)
            await gate.server.drain(0.05)
            assert gate.assigner.open == 0
            assert gate.assigner.outcomes == [Outcome.CLIENT_GONE] * 12
            await eventually(lambda: engine.open == 0)
            for client in clients:
                await client.__aexit__(None, None, None)

    run(main())
