"""`python -m bench.relay.aiohttp_proxy PORT UPSTREAM_PORT`: the baseline, a plain proxy as one writes it with aiohttp.

On uvloop, without access log, booking or accounting.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import ClientSession, DummyCookieJar, TCPConnector, web

DROPPED = {"host", "content-length", "transfer-encoding", "connection", "keep-alive"}


async def serve(port: int, upstream_port: int) -> None:
    """Serve until killed."""
    async with ClientSession(connector=TCPConnector(limit=0), cookie_jar=DummyCookieJar()) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in DROPPED}
            url = f"http://127.0.0.1:{upstream_port}{request.rel_url}"
            async with session.post(url, data=await request.read(), headers=headers) as upstream:
                kept = {name: value for name, value in upstream.headers.items() if name.lower() not in DROPPED}
                if upstream.content_length is not None:
                    return web.Response(status=upstream.status, headers=kept, body=await upstream.read())
                reply = web.StreamResponse(status=upstream.status, headers=kept)
                await reply.prepare(request)
                async for part in upstream.content.iter_any():
                    await reply.write(part)
                await reply.write_eof()
                return reply

        app = web.Application(client_max_size=1 << 25)
        app.router.add_post("/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
