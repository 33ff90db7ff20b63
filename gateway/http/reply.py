"""The reply to one request: head, framing, body, end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus

from gateway.http.errors import JSON, OPENAI, ErrorShape, RequestError
from gateway.http.flow_control import FlowControl, PausableReader
from gateway.http.message import Header, render_headers

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode("ascii")) for status in HTTPStatus
}
_BODILESS = frozenset({204, 304})


class _Date:
    """The `date` header, made anew once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode("ascii")
        return self._line


_date = _Date()


CLIENT_CLOSED_REQUEST = 499
"""Status in results and metrics of a request whose client left before a head was sent; never on the wire."""


class Reply:
    """Writes one reply to the client, in one of two ways: `send`, or `start`, `write` as often as needed, `finish`.

    Headers given to `send` and `start` have lower-case names and hold nothing of framing or connection
    (content-length, transfer-encoding, connection): those are the reply's own, as are x-request-id, and date where it
    is not among them. HEAD, 204 and 304 get no body, HTTP/1.0 clients a body that ends with the connection when its
    length is not known. Once the client has left, whatever is written is dropped.
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_flow",
        "_http_10",
        "_remaining",
        "_transport",
        "closed",
        "error_shape",
        "finished",
        "keep_alive",
        "on_closed",
        "on_cut",
        "on_started",
        "request_id",
        "started",
        "status",
        "upstream",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        flow: FlowControl,
        request_id: str,
        *,
        method: str,
        version: str,
        keep_alive: bool,
    ) -> None:
        self._transport = transport
        self._flow = flow
        self._http_10 = version == "1.0"
        self._bodiless = method == "HEAD"
        self._chunked = False
        self._remaining: int | None = None
        self.request_id = request_id
        self.error_shape: ErrorShape = OPENAI
        """Of the gateway's own errors, as the path's clients read them."""
        self.keep_alive = keep_alive
        """False: the connection closes after this reply."""
        self.status: int | None = None
        """The status sent; None before the head."""
        self.upstream = ""
        """Who was asked last, for the access log."""
        self.started = False
        """The head has been written: nothing else can be answered any more."""
        self.finished = False
        """The reply is whole, or was aborted."""
        self.closed = False
        """The connection is gone: the client left, or the server's grace ended."""
        self.on_closed: Callable[[], None] | None = None
        """Called once when `closed` becomes true before the reply is finished."""
        self.on_started: Callable[[], None] | None = None
        """Called when the head is written: nobody will need the request's body again."""
        self.on_cut: Callable[[], bool] | None = None
        """Called when the server's grace ends within the reply; whether it has ended the reply by that."""

    @property
    def final_status(self) -> int:
        """The status sent; CLIENT_CLOSED_REQUEST where the client left before a head."""
        return CLIENT_CLOSED_REQUEST if self.status is None else self.status

    def send(self, status: int, headers: Iterable[Header] = (), body: bytes = b"") -> None:
        """Send a whole reply."""
        head = self._head(status, headers, len(body))
        self.finished = True
        if not self.closed:
            self._transport.write(head if self._bodiless else head + body)

    def send_error(self, error: RequestError) -> None:
        """Send a whole reply that says why the request is not served, in the shape that the path's clients read."""
        self.send(error.status, (JSON, *error.headers), self.error_shape.body(error))

    def start(self, status: int, headers: Iterable[Header] = (), length: int | None = None, first: bytes = b"") -> None:
        """Send the head of a reply whose body is `length` bytes (None when not known) and begins with `first`."""
        head = self._head(status, headers, length)
        self._remaining = length
        framed = self._frame(first)
        if not self.closed:
            self._transport.write(head + framed)

    def write(self, data: bytes) -> None:
        """Send a part of the body. Await `drain` between writes unless a source is attached.

        Raises ValueError when there would be more bytes than the announced length.
        """
        if not self.finished and not self.closed:
            framed = self._frame(data)
            if framed:
                self._transport.write(framed)

    def finish(self) -> None:
        """End the body. A body shorter than its announced length aborts the connection instead."""
        if self.finished:
            return
        if self._remaining and not self._bodiless:
            self.abort()
            return
        self.finished = True
        if self._chunked and not self.closed:
            self._transport.write(b"0\r\n\r\n")

    def abort(self) -> None:
        """Cut the connection, so that the client sees an incomplete reply."""
        self.finished = True
        self.keep_alive = False
        self._transport.abort()

    async def drain(self) -> None:
        """Wait until the client takes more bytes, or has left; the server's stall deadline bounds the wait."""
        if not self.closed:
            await self._flow.drain()

    def attach(self, source: PausableReader) -> None:
        """Let `source` pause while the client takes no more bytes, until `detach`."""
        self._flow.attach(source)

    def detach(self) -> None:
        """End what `attach` began."""
        self._flow.detach()

    def connection_closed(self) -> None:
        """Called by the connection when it is gone."""
        if self.closed:
            return
        self.closed = True
        if not self.finished and self.on_closed is not None:
            self.on_closed()

    def _frame(self, data: bytes) -> bytes:
        if not data or self._bodiless:
            return b""
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(data), data)
        if self._remaining is not None:
            self._remaining -= len(data)
            if self._remaining < 0:
                raise ValueError(f"the body is {-self._remaining} bytes longer than its announced length")
        return data

    def _head(self, status: int, headers: Iterable[Header], length: int | None) -> bytes:
        if self.started:
            raise RuntimeError("this reply has begun already")
        self.started = True
        self.status = status
        if self.on_started is not None:
            self.on_started()
        lines = render_headers(headers)
        framing = b""
        if status in _BODILESS:
            self._bodiless = True
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self._http_10:
            self.keep_alive = False
        elif self._bodiless:
            framing = b""
        else:
            self._chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        elif self._http_10:
            framing += b"connection: keep-alive\r\n"
        return b"%b%b%b%bx-request-id: %b\r\n\r\n" % (
            _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status,
            lines,
            b"" if b"\r\ndate: " in lines or lines.startswith(b"date: ") else _date.line(),
            framing,
            self.request_id.encode("latin-1"),
        )
