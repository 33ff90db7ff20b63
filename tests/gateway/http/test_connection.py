"""What clients may send, what is refused, and when their connections end."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from gateway.http.message import Request
from gateway.http.reply import Reply
from tests.gateway.http.support import client, request, run, serving
from tests.support import eventually


async def echo(request: Request, reply: Reply) -> None:
    """Answer with what was asked, after a turn of the loop."""
    await asyncio.sleep(0)
    body = f"{request.method} {request.path} {len(request.body)}".encode()
    reply.send(200, ((b"content-type", b"text/plain"),), body)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def main() -> None:
        async with serving(echo) as server, client(server.port) as user:
            user.send(b"".join(request(path=f"/{number}", body=b"x" * number) for number in range(50)))
            for number in range(50):
                assert (await user.answer()).body == f"POST /{number} {number}".encode()

    run(main())


def test_pipelined_requests_beyond_the_limit_are_left_unanswered() -> None:
    async def main() -> None:
        async with serving(echo) as server, client(server.port) as user:
            user.send(request("GET", "/", b"") * 200)
            statuses = []
            while not user.reader.at_eof():
                answer = await user.answer()
                statuses.append(answer.status)
                if answer.header(b"connection") == b"close":
                    break
            assert set(statuses[:-1]) == {200}
            assert 60 <= len(statuses) <= 80
            assert statuses[-1] == 503
            assert await user.at_end()

    run(main())


def test_a_client_that_pipelines_without_end_is_not_read_without_end() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            await release.wait()
            reply.send(200, (), b"")

        async with serving(handler) as server, client(server.port) as user:
            user.writer.transport.set_write_buffer_limits(high=1)
            user.send(request())
            user.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 30000000\r\n\r\n")
            sent = 0

            async def upload() -> None:
                nonlocal sent
                while True:
                    user.send(bytes(65_536))
                    await user.writer.drain()
                    sent += 65_536

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(upload(), 0.5)
            assert sent < 20_000_000
            release.set()
            assert (await user.answer()).status == 200

    run(main())


def test_an_error_in_a_pipeline_comes_after_the_replies_before_it_and_ends_the_connection() -> None:
    smuggling = (
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
    )
    seen: list[str] = []

    async def handler(request: Request, reply: Reply) -> None:
        seen.append(request.path)
        await echo(request, reply)

    async def main() -> None:
        async with serving(handler) as server, client(server.port) as user:
            user.send(request(path="/1") + request(path="/2") + smuggling)
            assert (await user.answer()).status == 200
            assert (await user.answer()).status == 200
            refused = await user.answer()
            assert refused.status == 400
            assert refused.header(b"connection") == b"close"
            assert json.loads(refused.body)["error"]["type"] == "invalid_request_error"
            assert await user.at_end()
            assert seen == ["/1", "/2"]

    run(main())


def test_expect_continue() -> None:
    async def main() -> None:
        head = b"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        async with serving(echo) as server, client(server.port) as user:
            for _ in range(2):
                user.send(head)
                assert (await user.head()).start == b"HTTP/1.1 100 Continue"
                assert (await user.ask(b"hello")).body == b"POST /x 5"
            # The body came along: nobody waits for a 100.
            assert (await user.ask(head + b"hello")).body == b"POST /x 5"
            # Behind another request the 100 waits for its turn.
            user.send(request() + head)
            assert (await user.answer()).body == b"POST /v1/x 2"
            assert (await user.head()).start == b"HTTP/1.1 100 Continue"
            assert (await user.ask(b"hello")).body == b"POST /x 5"

    run(main())


def test_expect_continue_with_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        async with serving(echo, body_limit_bytes=1024) as server, client(server.port) as user:
            head = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1025\r\n\r\n"
            assert (await user.ask(head)).status == 413
            assert await user.at_end()

    run(main())


def test_a_refused_upload_gets_its_answer_though_the_client_goes_on_sending() -> None:
    async def main() -> None:
        async with serving(echo, body_limit_bytes=1024) as server, client(server.port) as user:
            user.send(request(body=bytes(5_000_000)))
            refused = await user.answer()
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (413, "request_too_large")

    run(main())


def test_chunked_uploads() -> None:
    async def main() -> None:
        async with serving(echo) as server, client(server.port) as user:
            head = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            assert (await user.ask(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")).body == b"POST /c 5"
            assert (await user.ask(head + b"0\r\nTrailer: x\r\n\r\n")).body == b"POST /c 0"

    run(main())


def test_a_request_that_comes_byte_by_byte() -> None:
    async def main() -> None:
        async with serving(echo) as server, client(server.port) as user:
            for byte in request(body=b"abc"):
                user.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await user.answer()).body == b"POST /v1/x 3"

    run(main())


def test_head_has_the_length_but_no_body() -> None:
    async def main() -> None:
        async with serving(echo) as server, client(server.port) as user:
            answer = await user.ask(request("HEAD", "/x", b""), bodiless=True)
            assert answer.header(b"content-length") == b"9"
            assert (await user.ask(request("GET", "/x", b""))).body == b"GET /x 0"

    run(main())


@pytest.mark.parametrize(
    ("version", "header", "kept"),
    [
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive", True),
        ("1.1", "", True),
        ("1.1", "Connection: close", False),
    ],
)
def test_keep_alive(version: str, header: str, kept: bool) -> None:
    async def main() -> None:
        async with serving(echo) as server, client(server.port) as user:
            sent = request(headers=[header] if header else [], version=version)
            answer = await user.ask(sent)
            assert answer.body == b"POST /v1/x 2"
            if kept:
                assert answer.header(b"connection") == (b"keep-alive" if version == "1.0" else None)
                assert (await user.ask(sent)).body == b"POST /v1/x 2"
            else:
                assert answer.header(b"connection") == b"close"
                assert await user.at_end()

    run(main())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_replies_written_in_parts(version: str) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        length = 6 if request.path == "/length" else None
        reply.start(200, ((b"x-a", b"b"),), length)
        for part in (b"ab", b"", b"cd", b"ef"):
            reply.write(part)
            await reply.drain()
        reply.finish()
        reply.finish()

    async def main() -> None:
        async with serving(handler) as server:
            for path in ("/length", "/"):
                async with client(server.port) as user:
                    answer = await user.ask(request("GET", path, b"", ["Connection: keep-alive"], version))
                    assert answer.body == b"abcdef"
                    assert answer.header(b"date")
                    assert (answer.header(b"content-length") is not None) == (path == "/length")
                    assert (answer.header(b"transfer-encoding") is not None) == (path == "/" and version == "1.1")

    run(main())


async def fail_early(request: Request, reply: Reply) -> None:
    raise ZeroDivisionError("secret")


async def fail_late(request: Request, reply: Reply) -> None:
    reply.start(200)
    reply.write(b"begun")
    raise ZeroDivisionError("secret")


async def forget(request: Request, reply: Reply) -> None:
    pass


async def forget_the_end(request: Request, reply: Reply) -> None:
    reply.start(200)


async def too_short(request: Request, reply: Reply) -> None:
    reply.start(200, (), 10)
    reply.write(b"abc")
    reply.finish()


async def too_long(request: Request, reply: Reply) -> None:
    reply.start(200, (), 3)
    reply.write(b"abcd")


@pytest.mark.parametrize("handler", [fail_early, forget])
def test_a_handler_that_fails_before_the_reply_makes_a_500(handler: object, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(handler) as server, client(server.port) as user:  # type: ignore[arg-type]
            for _ in range(2):
                answer = await user.ask(request(headers=["x-request-id: abc"]))
                assert answer.status == 500
                assert json.loads(answer.body)["error"]["type"] == "server_error"
                assert b"secret" not in answer.body
                assert answer.header(b"x-request-id") == b"abc"

    with caplog.at_level(logging.ERROR):
        run(main())
    assert len(caplog.records) == 2
    assert all("abc" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("handler", [fail_late, forget_the_end, too_short, too_long])
def test_a_handler_that_fails_within_the_reply_cuts_the_connection(handler: object) -> None:
    async def main() -> None:
        async with serving(handler) as server, client(server.port) as user:  # type: ignore[arg-type]
            user.send(request())
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await user.answer()
            await eventually(lambda: server.connections == 0)

    run(main())


def test_a_client_that_leaves_is_told_to_the_handler() -> None:
    async def main() -> None:
        told = asyncio.Event()
        writes_after = 0

        async def handler(request: Request, reply: Reply) -> None:
            nonlocal writes_after
            left = asyncio.Event()
            reply.on_closed = left.set
            await left.wait()
            assert reply.closed
            reply.start(200)
            reply.write(b"dropped")
            await reply.drain()
            reply.finish()
            writes_after += 1
            told.set()

        async with serving(handler) as server:
            async with client(server.port) as user:
                user.send(request())
                await eventually(lambda: server.connections == 1)
            await asyncio.wait_for(told.wait(), 5)
            assert writes_after == 1
            await eventually(lambda: server.connections == 0)

    run(main())


def test_drain_waits_for_a_client_that_reads_slowly_and_ends_when_it_leaves() -> None:
    async def main() -> None:
        waits = asyncio.Event()
        ended = asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            reply.start(200)
            while not reply.closed:
                reply.write(bytes(65_536))
                waiting = asyncio.ensure_future(reply.drain())
                await asyncio.sleep(0)
                if not waiting.done():
                    waits.set()
                await waiting
            ended.set()

        async with serving(handler) as server, client(server.port) as user:
            user.writer.transport.pause_reading()  # type: ignore[attr-defined]
            user.send(request())
            await asyncio.wait_for(waits.wait(), 5)
            user.leave()
            await asyncio.wait_for(ended.wait(), 5)

    run(main())


def test_the_task_of_a_connection_ends_with_it() -> None:
    async def main() -> None:
        async with serving(echo) as server:
            before = len(asyncio.all_tasks())
            async with client(server.port) as user:
                for _ in range(3):
                    assert (await user.ask(request())).status == 200
                assert len(asyncio.all_tasks()) == before + 1
            await eventually(lambda: server.connections == 0 and len(asyncio.all_tasks()) == before)

    run(main())


def test_a_handler_that_is_cancelled_ends_its_connection() -> None:
    async def main() -> None:
        async def handler(request: Request, reply: Reply) -> None:
            raise asyncio.CancelledError

        async with serving(handler) as server, client(server.port) as user:
            user.send(request() + request())
            answer = await user.answer()
            assert (answer.status, answer.header(b"connection")) == (500, b"close")
            assert await user.at_end()
            await eventually(lambda: server.connections == 0)

    run(main())
