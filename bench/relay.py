"""What the relay costs: CPU a small request and a streamed chunk, against an aiohttp proxy in the same run.

    python -m bench.relay [--seconds 2] [--chunks 200] [--connections 16]

Four kinds of processes on this machine: an upstream that answers from memory, the proxy under test (ours or the
baseline, one at a time), and this one, which sends the load. The figures are the proxy's CPU time, user and system,
from the kernel's accounting, over the work done: a short reply through a kept connection, and one `data:` event of a
stream, each event written by the upstream in its own segment (the cost of a chunk is what a stream of N costs more
than one of 1, over N - 1).

Most of a chunk is the kernel's: epoll, one read, one write. On a busy machine either proxy finds several events in one
read and passes them on together, which lowers its figure; compare ratios of quiet runs only.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import time
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import httptools
import uvloop

from gateway.entrypoint.http import Request
from gateway.entrypoint.relay import relay
from gateway.entrypoint.reply import Reply
from gateway.entrypoint.server import Server
from gateway.entrypoint.upstream import UpstreamPool
from gateway.routing.assignment import Outcome
from warmroute.config import GatewayConfig

BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "%b"}]}' % (b"x" * 300)
SHORT = b'{"id": "c", "choices": [{"message": {"role": "assistant", "content": "%b"}}]}' % (b"y" * 200)
EVENT = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": " word"}}]}\n\n'
SHORT_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(SHORT), SHORT)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST_CHUNK = b"0\r\n\r\n"
EVENT_SECONDS = 0.002
START_SECONDS = 20.0


Serve = Callable[[int], AbstractAsyncContextManager[int]]
"""Takes the upstream's port, serves within the context, gives the port served."""


class Upstream(asyncio.Protocol):
    """Answers `POST /short` at once and `POST /<n>` with n events, EVENT_SECONDS apart. Trusts its requests."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if not self._seen.endswith(BODY):
            return
        path = self._seen.split(b" ", 2)[1]
        self._seen = b""
        if path == b"/short":
            self._transport.write(SHORT_REPLY)
        else:
            self._transport.write(STREAM_HEAD)
            self._event(int(path[1:]))

    def _event(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if left == 0:
            self._transport.write(LAST_CHUNK)
        else:
            self._transport.write(CHUNK)
            self._loop.call_later(EVENT_SECONDS, self._event, left - 1)


@dataclass
class OneWorker:
    """Assigns the upstream, and books nothing."""

    port: int
    worker_id: str = "w"
    host: str = "127.0.0.1"
    reply_headers: tuple[tuple[bytes, bytes], ...] = ((b"x-warmroute-worker", b"w"),)

    def assign(self, exclude: AbstractSet[str]) -> OneWorker | None:
        return self

    def first_byte(self) -> None: ...

    def close(self, outcome: Outcome) -> None: ...


@asynccontextmanager
async def serve_upstream(_: int) -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0, backlog=1024)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def serve_ours(upstream_port: int) -> AsyncIterator[int]:
    config = GatewayConfig(port=0)
    upstreams = UpstreamPool(config)
    assigner = OneWorker(upstream_port)

    async def handle(request: Request, reply: Reply) -> None:
        await relay(request, request.body, reply, assigner, upstreams, config)

    server = Server(handle, config)
    await server.start()
    yield server.port
    await server.drain(0.0)
    await upstreams.close()


@asynccontextmanager
async def serve_baseline(upstream_port: int) -> AsyncIterator[int]:
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector, web

    session = ClientSession(connector=TCPConnector(limit=0), cookie_jar=DummyCookieJar())
    dropped = {"host", "content-length", "transfer-encoding", "connection", "keep-alive"}

    async def handle(request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        url = f"http://127.0.0.1:{upstream_port}{request.rel_url}"
        async with session.post(url, data=await request.read(), headers=headers) as upstream:
            kept = {name: value for name, value in upstream.headers.items() if name.lower() not in dropped}
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
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()
    await session.close()


def _process(serve: Serve, upstream_port: int, pipe: Connection) -> None:
    """Serve, report the port, then answer each message on the pipe with this process's CPU seconds, until it ends."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def report() -> None:
            try:
                pipe.recv()
            except EOFError:
                ended.set_result(None)
                return
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(usage.ru_utime + usage.ru_stime)

        async with serve(upstream_port) as port:
            pipe.send(port)
            loop.add_reader(pipe.fileno(), report)
            await ended
            loop.remove_reader(pipe.fileno())

    uvloop.run(main())


class Process:
    """A server in a process of its own."""

    def __init__(self, serve: Serve, upstream_port: int = 0) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_process, args=(serve, upstream_port, theirs), daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(START_SECONDS):
            self._process.kill()
            raise TimeoutError("a server of the benchmark did not start")
        self.port: int = self._pipe.recv()

    def cpu_seconds(self) -> float:
        self._pipe.send(None)
        seconds: float = self._pipe.recv()
        return seconds

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


class LoadClient(asyncio.Protocol):
    """One connection that sends a request as soon as it has the reply to the last."""

    def __init__(self, path: str, until: float) -> None:
        self._request = (
            f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nAccept: */*\r\n"
            f"User-Agent: bench\r\nAccept-Encoding: gzip, deflate\r\nAuthorization: Bearer key\r\n"
            f"Content-Length: {len(BODY)}\r\n\r\n"
        ).encode() + BODY
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.replies = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.replies += 1
        if self._loop.time() < self._until:
            self._transport.write(self._request)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def load(port: int, path: str, connections: int, seconds: float) -> int:
    """Replies got over `connections` connections in `seconds`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    clients = [
        (await loop.create_connection(lambda: LoadClient(path, until), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    async with asyncio.timeout(seconds + 20):
        await asyncio.gather(*(client.done for client in clients))
    return sum(client.replies for client in clients)


@dataclass(frozen=True)
class Costs:
    """CPU microseconds of a proxy."""

    request: float
    chunk: float


def measure(proxy: Process, seconds: float, connections: int, chunks: int) -> Costs:
    def cost(path: str) -> float:
        uvloop.run(load(proxy.port, path, connections, 0.3))  # warm up
        before = proxy.cpu_seconds()
        replies = uvloop.run(load(proxy.port, path, connections, seconds))
        assert replies, "no replies came"
        return (proxy.cpu_seconds() - before) / replies * 1e6

    request = cost("/short")
    one = cost("/1")
    many = cost(f"/{chunks}")
    return Costs(request, (many - one) / (chunks - 1))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="bench.relay", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each of the six measurements")
    parser.add_argument("--chunks", type=int, default=200, help="events in a stream")
    parser.add_argument("--connections", type=int, default=16, help="concurrent clients")
    arguments = parser.parse_args(argv)
    started_at = time.monotonic()
    with Process(serve_upstream) as upstream:
        with Process(serve_ours, upstream.port) as ours:
            relayed = measure(ours, arguments.seconds, arguments.connections, arguments.chunks)
        with Process(serve_baseline, upstream.port) as baseline:
            aiohttp = measure(baseline, arguments.seconds, arguments.connections, arguments.chunks)
    print(f"{'CPU of the proxy':<28}{'warmroute':>12}{'aiohttp':>12}{'ratio':>9}")
    for name, mine, theirs in (
        ("us a small request", relayed.request, aiohttp.request),
        ("us a streamed chunk", relayed.chunk, aiohttp.chunk),
    ):
        print(f"{name:<28}{mine:>12.1f}{theirs:>12.1f}{theirs / mine:>8.1f}x")
    print(f"took {time.monotonic() - started_at:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
