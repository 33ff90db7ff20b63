"""One attempt to have one worker answer one request: a state machine that the network drives.

    CONNECTING --connected--> WAITING --first byte--> STREAMING --end of the reply--> ENDED

Every state also leads to ENDED: by a failure (in STREAMING the reply breaks off, before it another worker may be
tried) and by the client's leaving. The bytes of a reply go through in callbacks, without a task or timer a chunk.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol

from gateway.http.errors import STOPPED, RequestError
from gateway.http.forwarding import reply_headers
from gateway.http.message import Header
from gateway.http.outcome import Outcome
from gateway.http.reply import Reply
from gateway.http.sse import FirstDataLine, error_event, is_event_stream
from gateway.http.upstream import UpstreamPool
from gateway.http.upstream_connection import Failure, ReplyHead, UpstreamConnection

HELD_LIMIT_BYTES = 65_536
"""Most bytes that are held back of a refusal that another worker's reply may replace; of a longer one only the status
is kept."""
HELD_EVENTS_BYTES = 1_048_576
"""Most bytes of a stream that are held back before its first event, then they go out as they are: comments, and what
announces a response, which repeats the request's instructions and tools twice."""
TAIL_BYTES = 8_192
BYTES_PER_TOKEN = 4
RETRIED_STATUSES = frozenset({502, 503, 504})
"""A worker that says this has not begun with the request, or not finished it."""


class Phase(Enum):
    """Where an attempt is."""

    CONNECTING = "connecting"
    WAITING = "waiting"
    """The request is sent; nothing of the reply has been shown to the client, neither its head."""
    STREAMING = "streaming"
    ENDED = "ended"


class Destination(Protocol):
    """Where an attempt goes, and who wants to know when its reply begins."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def reply_headers(self) -> tuple[Header, ...]:
        """Headers to add to the reply; lower-case names."""
        ...

    def first_byte(self, *, streamed: bool = True) -> None:
        """The first body byte of the reply came; of a stream the first event that counts, see `gateway.http.sse`.
        Called at most once. `streamed`: the reply is a stream, so that the prompt has just been computed; other
        replies begin when they are done."""
        ...


class ReplyEdit(Protocol):
    """What changes, or only reads, a reply's body on its way to the client."""

    def begin(self, head: ReplyHead) -> bool:
        """Called once, before `feed`; whether the body may change, so that its announced length no longer holds."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Take more of the worker's body; returns what goes to the client now."""
        ...

    def finish(self) -> bytes:
        """The worker's body has ended, whole or not: returns what was held back."""
        ...


class Exchange:
    """One attempt. `run` it once, then read what became of it. Listener of its worker, source of its client."""

    def __init__(
        self, reply: Reply, destination: Destination, upstreams: UpstreamPool, edit: ReplyEdit | None, ends_at: float
    ) -> None:
        """`edit` is of this request, for all its attempts. The attempt is stopped at loop time `ends_at`."""
        self._reply = reply
        self._destination = destination
        self._upstreams = upstreams
        self._limits = upstreams.limits
        self._idle_seconds = upstreams.limits.stream_idle_seconds
        self._edit = edit
        self._ends_at = ends_at
        self._loop = asyncio.get_running_loop()
        self._request_head = b""
        self.body = b""
        """The request's; let go of when the client's reply begins."""
        self._head_only = False
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[UpstreamConnection] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._scanner: FirstDataLine | None = None
        self._stale = False
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._body_bytes = 0
        self._events = 0
        self.phase = Phase.CONNECTING
        self.outcome = Outcome.CLIENT_GONE
        """How the attempt ended; until it has, what it would be if the gateway stopped it."""
        self.failure: Failure | None = None
        """Why it failed, if not by a reply."""
        self.head: ReplyHead | None = None
        """The reply's head."""
        self.refusal: bytes | None = None
        """The body of a reply in RETRIED_STATUSES, not shown to the client; None when there is none or it was long."""
        self.first_byte_at: float | None = None
        self.event_stream = False
        self.content_encoding: bytes | None = None

    @property
    def tail(self) -> bytes:
        """The last bytes of the reply's body, at most TAIL_BYTES."""
        return b"".join(self._tail)[-TAIL_BYTES:]

    @property
    def reply_tokens(self) -> int:
        """About how many tokens the reply's body had, for replies that do not tell: one an event, else by length."""
        return self._events if self.event_stream and self._plain else self._body_bytes // BYTES_PER_TOKEN

    async def run(self, head: bytes, body: bytes) -> Outcome:
        """Send the request and relay its reply. Raises only CancelledError; leaves nothing of the attempt behind,
        however it ends."""
        self._request_head = head
        self.body = body
        body = b""
        self._head_only = head.startswith(b"HEAD ")
        self._reply.on_closed = self._client_left
        self._reply.on_cut = self._cut
        try:
            connection = self._upstreams.take(self._destination.host, self._destination.port)
            if connection is not None:
                await self._carry(connection)
            if connection is None or self._stale:
                connection = await self._connect()
                if connection is not None:
                    await self._carry(connection)
        finally:
            self.phase = Phase.ENDED
            self._reply.on_closed = self._reply.on_cut = None
            self._reply.detach()
            self._abort_upstream()
        return self.outcome

    async def _connect(self) -> UpstreamConnection | None:
        self.phase = Phase.CONNECTING
        self._connecting = self._loop.create_task(
            self._upstreams.connect(self._destination.host, self._destination.port)
        )
        try:
            return await self._connecting
        except TimeoutError:
            self.failure = Failure.TIMEOUT
            self.outcome = Outcome.UNREACHABLE
        except (OSError, UnicodeError):  # UnicodeError: a host that is no name
            self.failure = Failure.REFUSED
            self.outcome = Outcome.UNREACHABLE
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not (self._reply.closed or self._reply.started) or (task is not None and task.cancelling()):
                raise
        return None

    async def _carry(self, connection: UpstreamConnection) -> None:
        if self._reply.closed or self._reply.started:
            connection.abort()
            return
        self.phase = Phase.WAITING
        self.failure = None
        self._stale = False
        self._ended = self._loop.create_future()
        if not connection.usable:  # lost again before this task had its turn
            self.failed(Failure.BROKEN, stale=False)
            return
        self._upstream = connection
        connection.deadline = min(self._loop.time() + self._limits.first_byte_seconds, self._ends_at)
        connection.send(self._request_head, self.body, self, head_only=self._head_only)
        await self._ended

    def received(self, head: ReplyHead, data: bytes, last: bool) -> None:
        if last:
            self._upstream = None  # it is the pool's again
        if self.phase is Phase.WAITING:
            self._wait(head, data, last)
            return
        self._remember(data)
        self._await_more()
        self._reply.write(data if self._edit is None else _edited(self._edit, data, last))
        if last:
            self._complete(head)

    def failed(self, failure: Failure, stale: bool) -> None:
        self._upstream = None
        self.failure = failure
        late = failure is Failure.TIMEOUT and self._loop.time() >= self._ends_at  # the worker is not to blame
        if self.phase is Phase.WAITING:
            self._stale = stale
            self._end(Outcome.CLIENT_GONE if late else Outcome.UNREACHABLE)
        elif late:
            self._break_off(
                RequestError(504, "the request took longer than it may (gateway.total_seconds)", "total_timeout")
            )
            self._end(Outcome.CLIENT_GONE)
        else:
            self._break_off(
                RequestError(
                    502, "the worker stopped in the middle of its reply; send the request again", "worker_lost"
                )
            )
            self._end(Outcome.BROKEN)

    def pause_reading(self) -> None:
        if self._upstream is not None:
            self._upstream.deadline = self._ends_at  # the client's connection has a deadline for taking bytes
            self._upstream.pause_reading()

    def resume_reading(self) -> None:
        if self._upstream is not None:
            self._await_more()
            self._upstream.resume_reading()

    def _await_more(self) -> None:
        if self._upstream is not None:
            self._upstream.deadline = min(self._loop.time() + self._idle_seconds, self._ends_at)

    def _cut(self) -> bool:
        """The grace of a gateway that stops has ended: say so, within a stream by an event where its client reads
        them. Whether the reply has been ended by that."""
        if self.phase is Phase.ENDED:
            return False
        if self.phase is Phase.CONNECTING and self._connecting is not None:
            self._connecting.cancel()
        self._abort_upstream()
        if self.phase is Phase.STREAMING:
            self._break_off(
                RequestError(
                    503, "the gateway was stopped in the middle of this reply; send it again", "gateway_stopped"
                )
            )
        else:
            self._reply.keep_alive = False
            self._reply.send_error(STOPPED)
        self._end(Outcome.CLIENT_GONE)
        return True

    def _client_left(self) -> None:
        if self.phase is Phase.CONNECTING and self._connecting is not None:
            self._connecting.cancel()
        self._abort_upstream()
        self._end(Outcome.CLIENT_GONE)

    def _abort_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None

    def _wait(self, head: ReplyHead, data: bytes, last: bool) -> None:
        """Hold the reply back until its first byte; keep a refusal from the client."""
        if self.head is None:
            self._inspect(head)
        self._held.append(data)
        self._held_bytes += len(data)
        if head.status in RETRIED_STATUSES:
            if last:
                self.refusal = b"".join(self._held)
                self._end(Outcome.SERVER_ERROR)
            elif self._held_bytes > HELD_LIMIT_BYTES:
                self._abort_upstream()
                self._end(Outcome.SERVER_ERROR)
        elif last or self._has_first_byte(data):
            self.first_byte_at = self._loop.time()
            self._destination.first_byte(streamed=self._scanner is not None)
            body = data if len(self._held) == 1 else b"".join(self._held)
            self._held.clear()
            self._remember(body)
            self._show(head, body, last)

    def _inspect(self, head: ReplyHead) -> None:
        self.head = head
        self.content_encoding = head.header(b"content-encoding")
        self.event_stream = is_event_stream(head.header(b"content-type"))
        if self.event_stream and self._plain:
            self._scanner = FirstDataLine()

    @property
    def _plain(self) -> bool:
        return self.content_encoding is None or self.content_encoding.lower() == b"identity"

    def _has_first_byte(self, data: bytes) -> bool:
        if self._scanner is None:
            return bool(data)
        return self._scanner.feed(data) or self._held_bytes > HELD_EVENTS_BYTES

    def _show(self, head: ReplyHead, body: bytes, last: bool) -> None:
        """Begin the client's reply."""
        self.body = b""
        headers = reply_headers(head, self._destination.reply_headers)
        changed = False
        if self._edit is not None:
            changed = self._edit.begin(head)
            body = _edited(self._edit, body, last)
        if last and not self._head_only:
            self._reply.send(head.status, headers, body)
            self._complete(head)
            return
        self.phase = Phase.STREAMING
        if self._upstream is not None:
            self._await_more()
            self._reply.attach(self)
        self._reply.start(head.status, headers, None if changed else head.length, body)
        if last:
            self._complete(head)

    def _complete(self, head: ReplyHead) -> None:
        self._reply.finish()
        if head.status >= 500:
            self._end(Outcome.SERVER_ERROR)
        else:
            self._end(Outcome.REFUSED if head.status >= 400 else Outcome.COMPLETED)

    def _break_off(self, error: RequestError) -> None:
        """Tell the client that its reply will not be whole: by an event where it reads events, else by the cut."""
        self._reply.detach()
        if self._edit is not None:
            self._reply.write(self._edit.finish())
        if self.event_stream and self._plain and self.head is not None and self.head.length is None:
            shape = self._reply.error_shape
            self._reply.write(error_event(shape.body(error), self.tail, name=shape.event_name))
            self._reply.keep_alive = False
            self._reply.finish()
        else:
            self._reply.abort()

    def _end(self, outcome: Outcome) -> None:
        self.phase = Phase.ENDED
        self.outcome = outcome
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _remember(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        self._body_bytes += len(data)
        if self.event_stream:
            self._events += data.count(b"data:")
        if self._tail_bytes > 2 * TAIL_BYTES:  # now and then, rather than at every chunk
            self._tail = [self.tail]
            self._tail_bytes = TAIL_BYTES


def _edited(edit: ReplyEdit, data: bytes, last: bool) -> bytes:
    """What the client gets for this part of the worker's body."""
    edited = edit.feed(data) if data else b""
    return edited + edit.finish() if last else edited
