"""One client connection: its requests handled one after another, its deadlines, its end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

from gateway.http.access_log import AccessLog
from gateway.http.deadlines import NEVER, DeadlineWatcher
from gateway.http.errors import OPENAI, STOPPED, ErrorShape, RequestError
from gateway.http.flow_control import FlowControl
from gateway.http.message import Request
from gateway.http.reply import Reply
from gateway.http.request_parser import RequestParser, request_id
from gateway.http.uploads import COUNTED_BYTES, Holding, Uploads
from warmroute.config.gateway import GatewayConfig

logger = logging.getLogger(__name__)

Handler = Callable[[Request, Reply], Awaitable[None]]
"""Answers one request. What it raises becomes a 500 in OpenAI's shape, or an aborted connection once the reply has
begun, and is logged with the request id. It is not cancelled when the client leaves: `reply.closed` says so."""

CheckHead = Callable[[Request], str]
"""Looks at a request without its body, before that is taken; raises RequestError where it will be refused. Returns
whose share of the memory for bodies it is in."""

NO_SHAPES: Final[dict[str, ErrorShape]] = {}

AHEAD_LIMIT_BYTES = 65_536
"""What a client may send ahead of the reply it waits for before reading stops (plus one read of the transport)."""
AHEAD_LIMIT_REQUESTS = 64
"""Pipelined requests kept; the connection ends after them, and clients repeat what was not answered."""
UPLOAD_BYTES_PER_SECOND = 65_536
"""The least rate of an upload, beyond the time that every request has."""
LINGER_SECONDS = 2.0
"""How long a refused client may still send: closing at once would reset the connection and lose the error."""


class Connection(asyncio.Protocol):
    """The server's side of one client connection.

    A client that shuts down its sending side counts as gone: that is how a client that leaves looks until something
    is written to it, and its request must not go on costing a GPU until then.
    """

    _transport: asyncio.Transport

    def __init__(
        self,
        handler: Handler,
        config: GatewayConfig,
        watch: DeadlineWatcher[Connection],
        on_refusal: Callable[[int], None] | None = None,
        access_log: AccessLog | None = None,
        uploads: Uploads | None = None,
        error_shapes: Mapping[str, ErrorShape] = NO_SHAPES,
        check_head: CheckHead | None = None,
        *,
        busy: bool,
    ) -> None:
        """`on_refusal` is told the status of refusals; `error_shapes` are those of the paths that have another than
        OpenAI's; `check_head` is asked about bodies that are not small and there at once; `busy`: the server has its
        limit of connections; refuse this one."""
        self._error_shapes = error_shapes
        self._access_log = access_log
        self._uploads = uploads
        self._check_head = check_head
        self._holding: Holding | None = None
        self._client = self._address = ""
        """Whose share of `uploads` its bodies are in."""
        self._whole_bytes = 0
        """Of the body of the request in progress, until its reply begins."""
        self._handler = handler
        self._on_refusal = on_refusal
        self._config = config
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._flow = FlowControl()
        self._parser = RequestParser(config.header_limit_bytes, config.body_limit_bytes)
        self._queue: deque[Request | RequestError] = deque()
        self._ahead_bytes = 0
        self._reading = True
        self._reply: Reply | None = None
        # One task serves all requests of a connection: a task each would cost more than parsing one.
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self._turn: asyncio.Future[None] | None = None
        self._busy = busy
        self._free_at = 0.0
        self._last = False
        self._ending = False
        self.deadline = NEVER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        client = self._client = self._address = peer[0] if isinstance(peer, tuple) else ""
        scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self._parser = RequestParser(self._config.header_limit_bytes, self._config.body_limit_bytes, client, scheme)
        self._watch.add(self)
        self.deadline = self._loop.time() + self._config.client_idle_seconds
        if self._busy:
            self._refuse(RequestError(503, "the gateway has its limit of connections; try again later", "overloaded"))

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        now = self._loop.time()
        came = self._parser.feed(data, now)
        if self._parser.in_body or self._holding is not None or len(data) > COUNTED_BYTES:
            came = self._checked(came)
            self._queue.extend(came)
            if self._has_given_way(now):
                return
        else:
            self._queue.extend(came)
        if len(self._queue) > AHEAD_LIMIT_REQUESTS:
            while len(self._queue) > AHEAD_LIMIT_REQUESTS:
                self._queue.pop()
            self._queue.append(RequestError(503, "too many pipelined requests", "overloaded"))
        if self._reply is None:
            self._next()
            return
        self._ahead_bytes += len(data)
        if self._ahead_bytes > AHEAD_LIMIT_BYTES and self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _checked(self, came: list[Request | RequestError]) -> list[Request | RequestError]:
        """What has come, up to the first request whose head says that it will be refused. The last one's client is
        whose memory counts."""
        checked: list[Request | RequestError] = []
        parser = self._parser
        try:
            for item in came:
                if isinstance(item, Request) and item.body_bytes > COUNTED_BYTES:
                    self._client = self._client_of(item)
                checked.append(item)
            if parser.in_body and not parser.head_checked:
                parser.head_checked = True
                self._client = self._client_of(parser.head())
        except RequestError as error:
            if self._uploads is not None:
                self._uploads.refused("head")
            checked.append(error)
            parser.stop()
        return checked

    def _client_of(self, head: Request) -> str:
        return head.client if self._check_head is None else self._check_head(head)

    def _has_given_way(self, now: float) -> bool:
        """Count what is held, and have an upload give way where that is too much: another's, or our own, and with it
        this connection."""
        if self._uploads is not None:
            self._count()
            if self._holding is not None:
                self._uploads.make_room(self._client, now)
        return self._ending

    def _count(self) -> None:
        """This connection's part of `Uploads`."""
        if self._uploads is None:
            return
        arriving = self._parser.body_bytes if self._parser.in_body else 0
        if arriving <= COUNTED_BYTES:
            arriving = 0
        for item in self._queue:
            if isinstance(item, Request) and (size := item.body_bytes) > COUNTED_BYTES:
                arriving += size
        holding, size = self._holding, self._whole_bytes + arriving
        if holding is None:
            if size == 0:
                return
            holding = self._holding = Holding(self._give_way)
        holding.began_at = self._parser.began_at
        self._uploads.hold(holding, self._client, size, arriving=arriving > 0)
        if size == 0:
            self._holding = None

    def _give_way(self, error: RequestError) -> None:
        """There is too much at once, and what arrives here is what goes."""
        if self._reply is None:
            self._refuse(error)
            return
        self._queue.clear()
        self._queue.append(error)
        self._parser.stop()
        self._count()

    def _body_done(self) -> None:
        """The request in progress needs its body no longer."""
        self._whole_bytes = 0
        self._count()

    def _forget(self) -> None:
        """Nothing more is read from this client."""
        self._queue.clear()
        self._parser.stop()
        self._whole_bytes = 0
        self._count()

    def eof_received(self) -> bool:
        if self._reply is not None and not self._reply.finished:
            self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending = True
        self._forget()
        self._flow.detach()
        self._flow.resume()
        if self._reply is not None:
            self._reply.connection_closed()
        else:
            self._watch.discard(self)
            self._wake()

    def pause_writing(self) -> None:
        self._flow.pause()
        self.deadline = self._loop.time() + self._config.stream_idle_seconds

    def resume_writing(self) -> None:
        self._flow.resume()
        self._set_deadline()

    @property
    def idle(self) -> bool:
        """It is open, and nothing of a request has come since the last reply."""
        return not (self._ending or self._queue or self._parser.mid_request) and self._reply is None

    def expire(self) -> None:
        """Act on the deadline: the client is idle, too slow to send, or too slow to take its reply."""
        if self._ending or self._reply is not None:
            self._transport.abort()
        elif self._parser.mid_request:
            self._refuse(RequestError(408, "the request did not arrive in time", "request_timeout"))
        else:
            self._close()

    def drain(self) -> None:
        """End after the request in progress, now if there is none."""
        self._last = True
        if self._reply is not None:
            self._reply.keep_alive = False
        elif not self._ending and not self._parser.mid_request:
            self._close()

    def cut(self) -> None:
        """The grace has ended: end the reply where its sender knows how, else as `abort`."""
        reply = self._reply
        if reply is not None and reply.on_cut is not None and reply.on_cut():
            return
        if reply is None or reply.started:
            self._transport.abort()
            return
        reply.keep_alive = False
        reply.send_error(STOPPED)
        reply.connection_closed()  # its handler need not go on
        self._close()

    def abort(self) -> None:
        """End now, and with it the handler's wait for this client."""
        self._transport.abort()

    def cancel(self) -> None:
        """End the handler itself, for one that does not end when its client is gone."""
        if self._task is not None:
            self._task.cancel()

    def _next(self) -> None:
        """Begin with the next request if there is one."""
        if self._queue:
            item = self._queue.popleft()
            if isinstance(item, RequestError):
                self._refuse(item)
            else:
                self._begin(item)
        elif self._parser.awaits_continue:
            self._parser.awaits_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._set_deadline()

    def _begin(self, request: Request) -> None:
        self._reply = Reply(
            self._transport,
            self._flow,
            request.request_id,
            method=request.method,
            version=request.version,
            keep_alive=request.keep_alive and not self._last,
        )
        self._reply.error_shape = self._error_shapes.get(request.path, OPENAI)
        if self._holding is not None and (size := request.body_bytes) > COUNTED_BYTES:
            self._whole_bytes = size
            self._reply.on_started = self._body_done
            self._count()
        self._request = request
        if self._task is None:
            self._task = self._loop.create_task(self._serve())
        else:
            self._wake()

    def _wake(self) -> None:
        """Let the task that waits for a request look for it, or for the connection's end."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    async def _serve(self) -> None:
        """Handle requests as `_begin` leaves them, until the connection ends."""
        while True:
            request, self._request = self._request, None
            if request is not None and self._reply is not None:
                await self._handle(request, self._reply)
            elif self._ending:
                return
            else:
                self._turn = self._loop.create_future()
                await self._turn
                self._turn = None

    async def _handle(self, request: Request, reply: Reply) -> None:
        try:
            if request.parts is not None:
                parts, request.parts = request.parts, None
                # The join leaves the interpreter's lock to others, but only if it is not done on the loop.
                request.body = await self._loop.run_in_executor(None, b"".join, parts)
                parts.clear()
            await self._handler(request, reply)
            if not reply.finished and not reply.closed:
                logger.error("request %s: the handler left the reply unfinished", request.request_id)
        except Exception:
            logger.exception("request %s failed", request.request_id)
        except asyncio.CancelledError:
            reply.keep_alive = False  # no task would handle a further request
            raise
        finally:
            self._end(reply)
            if self._access_log is not None:
                self._access_log.add(request, reply, self._loop.time() - request.arrived_at)

    def _end(self, reply: Reply) -> None:
        """The handler has ended: make sure that the reply has, then go on."""
        if not reply.started and not reply.closed:
            reply.send_error(RequestError(500, "the gateway failed to answer this request", "internal_error"))
        elif not reply.finished:
            reply.abort()
        self._reply = None
        if self._whole_bytes:
            self._body_done()
        if self._ending or reply.closed:
            self._watch.discard(self)
        elif self._last or not reply.keep_alive:
            self._close()
        else:
            self._ahead_bytes = 0
            self._free_at = self._loop.time()
            if not self._reading:
                self._reading = True
                self._transport.resume_reading()
            self._next()

    def _refuse(self, error: RequestError) -> None:
        """Answer with an error, then let the client read it before the connection goes."""
        self._ending = True
        self._forget()
        reply = Reply(self._transport, self._flow, request_id(None), method="", version="1.1", keep_alive=False)
        reply.error_shape = self._error_shapes.get(self._parser.path, OPENAI)
        reply.send_error(error)
        if self._on_refusal is not None:
            self._on_refusal(error.status)
        if self._access_log is not None:
            parser = self._parser
            seconds = self._loop.time() - parser.began_at if parser.began_at else 0.0
            self._access_log.add_refused(reply, self._address, parser.method, parser.path, seconds)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:  # TLS, whose end is a message of its own
            self._transport.close()
        self._set_deadline()

    def _close(self) -> None:
        """End once everything written has been taken."""
        self._ending = True
        self._forget()
        self._transport.close()
        self._set_deadline()

    def _set_deadline(self) -> None:
        now = self._loop.time()
        if self._flow.paused or (self._ending and self._transport.get_write_buffer_size()):
            self.deadline = now + self._config.stream_idle_seconds
        elif self._ending:
            self.deadline = now + LINGER_SECONDS
        elif self._reply is not None:
            self.deadline = NEVER
        elif self._parser.mid_request:
            upload_seconds = self._parser.body_bytes / UPLOAD_BYTES_PER_SECOND
            began_at = max(self._parser.began_at, self._free_at)
            self.deadline = began_at + self._config.client_read_seconds + upload_seconds
        else:
            self.deadline = now + self._config.client_idle_seconds
