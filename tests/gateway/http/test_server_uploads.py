"""Bodies that are still arriving are bounded over all connections: their senders have shown no key yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from pydantic import ValidationError

from gateway.http.message import Request
from gateway.http.reply import Reply
from gateway.http.server import Server
from tests.gateway.http.support import WITHIN, Client, client, config, request, run, serving
from tests.support import eventually

LIMIT = 100_000
PART = 60_000
"""Of a body of LIMIT bytes; two of these are too much."""
HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % LIMIT


async def size(request: Request, reply: Reply) -> None:
    reply.send(200, (), b"%d" % len(request.body))


def uploading(server: Server) -> int:
    """Bytes of bodies that are still arriving."""
    return server._uploads.bytes


@asynccontextmanager
async def filled() -> AsyncIterator[tuple[Server, Client]]:
    """A server with one upload of PART bytes so far, and its client."""
    async with serving(size, uploads_limit_bytes=LIMIT, body_limit_bytes=LIMIT) as server:
        async with client(server.port) as first:
            first.send(HEAD + bytes(PART))
            await eventually(lambda: uploading(server) == PART)
            yield server, first
        await eventually(lambda: uploading(server) == 0)


def chunked(size: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % size + bytes(size)


@pytest.mark.parametrize("upload", [HEAD + bytes(PART), chunked(PART)], ids=["length", "chunked"])
def test_an_upload_beyond_the_total_gets_503_and_the_others_go_on(upload: bytes) -> None:
    async def main() -> None:
        async with filled() as (server, first), client(server.port) as second:
            second.send(upload)
            refused = await second.answer()
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "overloaded")
            assert await second.at_end()
            assert uploading(server) == PART
            assert (await first.ask(bytes(LIMIT - PART))).body == b"%d" % LIMIT
            assert uploading(server) == 0

    run(main())


def test_uploads_that_ended_count_no_longer() -> None:
    async def main() -> None:
        async with filled() as (server, first):
            async with client(server.port) as second:
                second.send(HEAD + bytes(LIMIT - PART))
                await eventually(lambda: uploading(server) == LIMIT)
                second.leave()
            await eventually(lambda: uploading(server) == PART)
            async with client(server.port) as third:
                for _ in range(3):  # whole ones, one after another
                    answer = await third.ask(request(body=bytes(LIMIT - PART)))
                    assert (answer.status, answer.body) == (200, b"%d" % (LIMIT - PART))
            first.leave()

    run(main())


def test_an_upload_beyond_the_total_behind_a_request_in_progress_ends_its_connection() -> None:
    async def main() -> None:
        running = asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            left = asyncio.Event()
            reply.on_closed = left.set
            running.set()
            await left.wait()

        limits = {"uploads_limit_bytes": LIMIT, "body_limit_bytes": LIMIT}
        async with serving(handler, **limits) as server, client(server.port) as first, client(server.port) as second:
            first.send(HEAD + bytes(PART))
            await eventually(lambda: uploading(server) == PART)
            second.send(request("GET", "/", b""))
            await asyncio.wait_for(running.wait(), WITHIN)
            second.send(HEAD + bytes(PART))
            with suppress(ConnectionResetError):
                assert await second.at_end()
            await eventually(lambda: server.connections == 1)

    run(main())


def test_the_setting() -> None:
    assert config().uploads_limit_bytes == 1 << 30
    with pytest.raises(ValidationError, match="less than body_limit_bytes"):
        config(body_limit_bytes=2048, uploads_limit_bytes=2047)
