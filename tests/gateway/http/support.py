"""A worker that does what a script says, byte by byte; a client that speaks raw HTTP; the gateway between them."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvloop

from gateway.http.connection import NO_SHAPES
from gateway.http.errors import ErrorShape, RequestError
from gateway.http.exchange import Exchange
from gateway.http.message import Request
from gateway.http.outcome import Outcome
from gateway.http.reply import Reply
from gateway.http.server import Handler, Server
from gateway.http.upstream import UpstreamPool
from gateway.http.upstream_security import UpstreamSecurity
from gateway.requests.relay import last_outcome, relay
from tests.support import eventually
from warmroute.config.gateway import GatewayConfig

TICK_SECONDS = 0.02
WITHIN = 10.0
TEST_SECONDS = 60.0


def run(main: Coroutine[Any, Any, None], within: float = TEST_SECONDS) -> None:
    """Run a test on uvloop, within a deadline."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main, within))


@dataclass
class Message:
    """A request or reply as it came over the wire."""

    start: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    def all(self, name: bytes) -> list[bytes]:
        return [value for candidate, value in self.headers if candidate.lower() == name]

    def header(self, name: bytes) -> bytes | None:
        values = self.all(name)
        assert len(values) <= 1, f"{name!r} came {len(values)} times"
        return values[0] if values else None


async def read_head(reader: asyncio.StreamReader, within: float = WITHIN) -> Message:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), within)
    start, *lines = head[:-4].split(b"\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    return Message(start, headers)


async def read_message(reader: asyncio.StreamReader, *, bodiless: bool = False, within: float = WITHIN) -> Message:
    """Read one message, whose head comes within `within` seconds; raises IncompleteReadError when it breaks off."""
    message = await read_head(reader, within)
    lengths, codings = message.all(b"content-length"), message.all(b"transfer-encoding")
    assert len(lengths) + len(codings) <= 1, message
    is_reply = message.start.startswith(b"HTTP/")
    if bodiless or (is_reply and message.status in {204, 304}):
        return message
    if codings:
        while size := int(await asyncio.wait_for(reader.readuntil(b"\r\n"), WITHIN), 16):
            message.chunks.append((await asyncio.wait_for(reader.readexactly(size + 2), WITHIN))[:-2])
        assert await reader.readexactly(2) == b"\r\n"
        message.body = b"".join(message.chunks)
    elif lengths:
        message.body = await asyncio.wait_for(reader.readexactly(int(lengths[0])), WITHIN)
    elif is_reply:
        message.body = await asyncio.wait_for(reader.read(), WITHIN)
    return message


class Link:
    """A worker's side of one connection, in the hands of a script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[Message]) -> None:
        self.reader = reader
        self.writer = writer
        self._seen = seen

    async def request(self) -> Message:
        message = await read_message(self.reader, within=TEST_SECONDS)  # idle until the test or the gateway ends it
        self._seen.append(message)
        return message

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def trickle(self, data: bytes) -> None:
        """Send byte by byte, each in its own segment as far as the kernel lets."""
        for byte in data:
            self.writer.write(bytes([byte]))
            await self.writer.drain()
            await asyncio.sleep(0)

    def die(self) -> None:
        """Reset the connection, as the kernel does for a killed process with unread input."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None:  # it is closed already, else
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def peer_gone(self) -> None:
        """Wait until the gateway has cut this connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass


Script = Callable[[Link], Awaitable[None]]


@dataclass
class Worker:
    port: int = 0
    accepted: int = 0
    open: int = 0
    requests: list[Message] = field(default_factory=list)


@asynccontextmanager
async def worker(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Worker]:
    """A worker on a free port, over TLS with `tls`. The script runs once a connection, which closes when it returns."""
    this = Worker()
    tasks: set[asyncio.Task[None]] = set()
    errors: list[Exception] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this.accepted += 1
        this.open += 1
        try:
            await script(Link(reader, writer, this.requests))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway cut the connection
        except Exception as error:  # noqa: BLE001  raised at the end of the test
            errors.append(error)
        finally:
            this.open -= 1
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024, ssl=tls)
    this.port = server.sockets[0].getsockname()[1]
    try:
        yield this
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if errors:
        raise ExceptionGroup("the script failed", errors)


def replying(*replies: bytes) -> Script:
    """Answer each request of a connection with all of `replies`, in separate writes."""

    async def script(link: Link) -> None:
        while True:
            await link.request()
            for reply in replies:
                await link.send(reply)

    return script


def plain(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\n%bContent-Length: %d\r\n\r\n%b" % (
        status,
        headers,
        len(body),
        body,
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class CountedAssignment:
    worker_id: str
    port: int
    host: str = "127.0.0.1"
    first_bytes: int = 0
    streamed: bool | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def request_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return ()

    @property
    def reply_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"x-warmroute-worker", self.worker_id.encode()),)

    def first_byte(self, *, streamed: bool = True) -> None:
        assert not self.outcomes, "first byte after close"
        self.first_bytes += 1
        self.streamed = streamed

    def close(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class CountingAssigner:
    """Assigns workers in a fixed order, and knows whether every booking was closed exactly once."""

    def __init__(self, *ports: int) -> None:
        self.ports = {f"w{number}": port for number, port in enumerate(ports)}
        self.given: list[CountedAssignment] = []
        self.excluded: list[set[str]] = []

    def assign(self, exclude: AbstractSet[str]) -> CountedAssignment | None:
        self.excluded.append(set(exclude))
        for worker_id, port in self.ports.items():
            if worker_id not in exclude:
                self.given.append(CountedAssignment(worker_id, port))
                return self.given[-1]
        return None

    @property
    def open(self) -> int:
        return sum(not assignment.outcomes for assignment in self.given)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for assignment in self.given for outcome in assignment.outcomes]

    def check(self) -> None:
        for assignment in self.given:
            assert len(assignment.outcomes) == 1, assignment
            assert assignment.first_bytes <= 1, assignment
            if assignment.outcomes == [Outcome.COMPLETED] or assignment.outcomes == [Outcome.BROKEN]:
                assert assignment.first_bytes == 1, assignment
            if assignment.outcomes == [Outcome.UNREACHABLE]:
                assert assignment.first_bytes == 0, assignment


def config(**fields: Any) -> GatewayConfig:
    return GatewayConfig(port=0, **fields)


@dataclass
class Relayed:
    """What became of a relayed request."""

    request: Request
    reply: Reply
    exchange: Exchange | None
    """The last attempt."""
    given: list[CountedAssignment]

    @property
    def status(self) -> int:
        return self.reply.final_status

    @property
    def outcome(self) -> Outcome | None:
        return last_outcome(self.reply, self.exchange)

    @property
    def worker_id(self) -> str | None:
        return self.given[-1].worker_id if self.given else None

    @property
    def attempts(self) -> int:
        return len(self.given)

    @property
    def tail(self) -> bytes:
        return b"" if self.exchange is None else self.exchange.tail

    @property
    def first_byte_at(self) -> float | None:
        return None if self.exchange is None else self.exchange.first_byte_at


@dataclass
class Gateway:
    server: Server
    assigner: CountingAssigner
    upstreams: UpstreamPool
    results: list[Relayed] = field(default_factory=list)

    async def result(self) -> Relayed:
        """The only result, once it is there."""
        await eventually(lambda: self.results, within=WITHIN)
        assert len(self.results) == 1
        return self.results[0]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with client(self.server.port) as connected:
            yield connected

    async def ask(self, request: bytes, *, bodiless: bool = False) -> Message:
        async with self.client() as connected:
            return await connected.ask(request, bodiless=bodiless)


class Client:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, request: bytes, *, bodiless: bool = False) -> Message:
        self.send(request)
        return await self.answer(bodiless=bodiless)

    async def answer(self, *, bodiless: bool = False) -> Message:
        return await read_message(self.reader, bodiless=bodiless)

    async def head(self) -> Message:
        return await read_head(self.reader)

    async def at_end(self) -> bool:
        """Whether the gateway closes the connection without sending anything more."""
        return await asyncio.wait_for(self.reader.read(1), WITHIN) == b""

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def client(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def serving(
    handler: Handler, *, error_shapes: Mapping[str, ErrorShape] = NO_SHAPES, **fields: Any
) -> AsyncIterator[Server]:
    """A server with this handler; drained at the end."""
    server = Server(handler, config(**fields), error_shapes=error_shapes, tick_seconds=TICK_SECONDS)
    await server.start()
    try:
        yield server
    finally:
        await server.drain(0.0)
        assert server.connections == 0


@asynccontextmanager
async def gateway(*ports: int, security: UpstreamSecurity | None = None, **fields: Any) -> AsyncIterator[Gateway]:
    """A gateway over the workers at these ports, `/health` answered locally. At the end it checks that every booking
    was closed exactly once and that no connection is left."""
    settings = config(**fields)
    upstreams = UpstreamPool(settings, security, tick_seconds=TICK_SECONDS)
    assigner = CountingAssigner(*ports)

    async def handle(request: Request, reply: Reply) -> None:
        if request.path == "/health":
            reply.send(200, ((b"content-type", b"text/plain"),), b"ok")
        elif request.path == "/teapot":
            reply.send_error(RequestError(418, "a teapot"))
        else:
            before = len(assigner.given)
            exchange = await relay(request, request.body, reply, assigner, upstreams)
            this.results.append(Relayed(request, reply, exchange, assigner.given[before:]))

    server = Server(handle, settings, tick_seconds=TICK_SECONDS)
    this = Gateway(server, assigner, upstreams)
    await server.start()
    try:
        yield this
    finally:
        await server.drain(0.0)
        await upstreams.close()
        assert server.connections == 0
        assert upstreams.connections == upstreams.idle == 0
    assigner.check()


def request(
    method: str = "POST", path: str = "/v1/x", body: bytes = b"{}", headers: Iterable[str] = (), version: str = "1.1"
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: gateway", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@contextmanager
def full_pipe() -> Iterator[int]:
    """The writing end of a pipe that nobody reads and that takes no more: a write to it blocks until the end."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        yield writer
    finally:
        os.close(reader)  # ends a thread that is stuck in a write
        os.close(writer)
