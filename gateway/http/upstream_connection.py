"""One keep-alive connection to a worker: sends a request, parses the reply."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, cast

import httptools

from gateway.http.deadlines import NEVER
from gateway.http.message import Header, first_values

MOST_STATUS = 599
JOIN_LIMIT_BYTES = 65_536
"""A write is a system call, about as dear as a copy of this much."""
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""Seconds, and milliseconds: a peer that is gone is noticed after 25 s of silence, or of bytes that it does not take
for 30 s."""


def notice_death(own: socket.socket | None) -> None:
    """Have a worker's socket fail when its host is gone without a word, as a node that lost its power."""
    if own is None or own.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # Linux has them all
            own.setsockopt(socket.IPPROTO_TCP, option, value)


class Failure(Enum):
    """Why there is no (whole) reply."""

    REFUSED = "refused"
    """No connection could be made."""
    BROKEN = "broken"
    """The connection ended before the reply did."""
    TIMEOUT = "timeout"
    """A deadline passed."""
    MALFORMED = "malformed"
    """The reply is not proper HTTP/1.1, or its head is too large."""


@dataclass(slots=True)  # not frozen: see Request
class ReplyHead:
    """Status and headers of a worker's reply; 1xx are skipped."""

    status: int
    headers: list[Header]
    """As they came, in order, duplicates kept; lower-case names."""
    length: int | None
    """The body's announced length in bytes (for HEAD the length that GET would have); None when not known."""
    first_values: dict[bytes, bytes] = field(repr=False, compare=False)
    """See `Request`."""

    def header(self, name: bytes) -> bytes | None:
        """The first value of the header with this lower-case name; None when there is none."""
        return self.first_values.get(name)


class ReplyListener(Protocol):
    """Who waits for a reply. Called until `last`, `failed`, or the caller's own `abort`, whichever is first."""

    def received(self, head: ReplyHead, data: bytes, last: bool) -> None:
        """More of the body; empty when there is only a head yet, or only an end. `head` is always the same."""
        ...

    def failed(self, failure: Failure, stale: bool) -> None:
        """The reply will not be completed. `stale`: the connection was a kept one and ended before it brought a byte,
        so that the worker has in all likelihood closed it before the request came."""
        ...


class ConnectionPool(Protocol):
    """The calls that a connection makes to its pool."""

    def opened(self, connection: UpstreamConnection) -> None: ...

    def free(self, connection: UpstreamConnection) -> None:
        """The reply is whole and the connection can carry another request."""
        ...

    def gone(self, connection: UpstreamConnection) -> None:
        """The connection is lost."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """Carries one request at a time. What the parser calls only records; listeners are called after each read, so
    that they may abort, or use the pool, from within."""

    _transport: asyncio.Transport

    def __init__(self, pool: ConnectionPool, address: tuple[str, int], head_limit: int) -> None:
        self._pool = pool
        self.address = address
        self._head_limit = head_limit
        self._parser = httptools.HttpResponseParser(self)
        self._listener: ReplyListener | None = None
        self._reused = False
        self._abandoned = False
        self.deadline = NEVER
        """Set by whoever uses the connection; see `watch`."""
        self._reset()

    def _reset(self) -> None:
        self._head: ReplyHead | None = None
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._head_bytes = self._status = 0
        self._head_told = self._head_only = self._complete = self._until_close = self._reusable = False

    @property
    def waiting(self) -> bool:
        """A request was sent, and no head of its reply has come."""
        return self._listener is not None and self._head is None

    @property
    def usable(self) -> bool:
        """Not closing."""
        return not self._transport.is_closing()

    def send(self, head: bytes, body: bytes, listener: ReplyListener, *, head_only: bool) -> None:
        """Send a request. `head_only`: it is a HEAD request, so that its reply has no body."""
        self._reset()
        self._listener = listener
        self._head_only = head_only
        if len(body) <= JOIN_LIMIT_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def abort(self) -> None:
        """Cut the connection; nobody is told."""
        self._listener = None
        self.deadline = NEVER
        self._transport.abort()

    def abandon(self) -> None:
        """Nobody waits for it any more, made or not."""
        self._abandoned = True
        self._pool.gone(self)

    def pause_reading(self) -> None:
        """Leave further bytes in the worker's socket."""
        if self.usable:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.usable:
            self._transport.resume_reading()

    def expire(self) -> None:
        """The deadline has passed: the reply is late, or the connection has been idle for long enough."""
        self._fail(Failure.TIMEOUT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._abandoned:
            self._transport.abort()
        else:
            notice_death(transport.get_extra_info("socket"))
            self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        listener = self._listener
        if listener is None:  # nobody asked: never take such bytes for the next reply
            self.abort()
            return
        failure: Failure | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            failure = Failure.MALFORMED
            self._reusable = False
        if self._head is None:
            self._head_bytes += len(data)
            if failure is not None or self._head_bytes > self._head_limit:
                self._fail(Failure.MALFORMED)
            return
        body = self._body
        self._body = []
        if self._complete:
            self._finish()
        elif not body and self._head_told and failure is None:
            return  # chunk framing only
        self._head_told = True
        listener.received(self._head, body[0] if len(body) == 1 else b"".join(body), self._complete)
        if failure is not None:
            self._fail(failure)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.gone(self)
        if self._listener is None:
            return
        if self._until_close and self._head is not None and exc is None:
            listener, self._listener = self._listener, None
            listener.received(self._head, b"", True)
        else:
            self._fail(Failure.BROKEN)

    def on_message_begin(self) -> None:
        if self._complete:
            self._reusable = False  # bytes after the reply

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._head is not None:
            return
        self._status = status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            if status < 100 or status == 101:
                raise ValueError(f"status {status} is no answer to this request")
            return
        if status > MOST_STATUS:
            raise ValueError(f"status {status} is of no class (RFC 9110 section 15)")
        values = first_values(self._headers)
        coding = values.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise ValueError("the only Transfer-Encoding understood is chunked")
        announced = values.get(b"content-length")
        length = int(announced) if announced is not None else None
        self._head = ReplyHead(status, self._headers, length, values)
        if self._head_only:
            self._complete = True
            return
        self._reusable = self._parser.should_keep_alive()
        self._until_close = coding is None and length is None

    def on_body(self, part: bytes) -> None:
        if not self._complete:
            self._body.append(part)

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self._complete = True

    def _finish(self) -> None:
        """The reply is whole: hand the connection back before the listener hears, who may want it for the next."""
        self._listener = None
        self.deadline = NEVER
        if self._reusable and not self._transport.get_write_buffer_size() and self.usable:
            self._reused = True
            self._pool.free(self)
        else:
            self._transport.abort()

    def _fail(self, failure: Failure) -> None:
        listener, self._listener = self._listener, None
        self.deadline = NEVER
        self._transport.abort()
        if listener is not None:
            stale = failure is Failure.BROKEN and self._reused and self._head is None and not self._head_bytes
            listener.failed(failure, stale)
