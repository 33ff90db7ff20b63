"""Replies that never end, or unpack to gigabytes, cost what they may and no more."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from warmroute.process.bounded_http import SESSION, ReplyError, read_bounded


@asynccontextmanager
async def server(handler):
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def read(url: str, limit: int) -> bytes:
    async with aiohttp.ClientSession(**SESSION) as session, session.get(url) as response:
        return await read_bounded(response, limit)


def test_a_reply_within_the_bound_is_read_whole() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=b"x" * 1000)

    async def scenario() -> None:
        async with server(handler) as url:
            assert await read(url, 1000) == b"x" * 1000
            with pytest.raises(ReplyError, match="more than 999 bytes"):
                await read(url, 999)

    asyncio.run(scenario())


def test_an_endless_reply_is_left() -> None:
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)
            sent += 65_536

    async def scenario() -> None:
        async with server(handler) as url:
            with pytest.raises(ReplyError):
                await asyncio.wait_for(read(url, 1_000_000), 20)

    asyncio.run(scenario())
    assert sent < 32_000_000  # what the sockets hold, beside the bound


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "x-unknown"])
def test_a_compressed_reply_is_not_unpacked(coding: str) -> None:
    packed = gzip.compress(b"\0" * 50_000_000)

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": coding})

    async def scenario() -> None:
        async with server(handler) as url:
            with pytest.raises(ReplyError, match=coding):
                await read(url, 1_000_000_000)

    asyncio.run(scenario())
