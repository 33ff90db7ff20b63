"""From the bytes of a connection to requests, with limits; no I/O."""

from __future__ import annotations

from random import getrandbits
from typing import NoReturn

import httptools

from gateway.http.errors import RequestError
from gateway.http.framing import CHUNKED, body_length, malformed, usual_length
from gateway.http.message import Header, Request, first_values

HEADER_COUNT_LIMIT = 256
REQUEST_ID_LIMIT = 128
PART_BYTES = 65_536
"""A body is kept in pieces from this size on."""
JOINED_BYTES = 1_048_576
"""A larger body is not joined here: that takes 10 ms for 32 MiB."""
FRAMING_BYTES = 262_144
FRAMING_RATIO = 3
"""Most bytes that come for each of a body: with chunks of a byte there are six, and each costs a microsecond."""

_TOO_LARGE = "request_too_large"


class RequestParser:
    """Takes what a connection brings, in pieces of any size, and gives whole requests.

    Bounds: the head (and trailers) by `header_limit` bytes plus one piece, the body by `body_limit` bytes, what a
    request's chunk framing may add by as much again, and by FRAMING_BYTES and twice what has come of the body.
    """

    def __init__(self, header_limit: int, body_limit: int, client: str = "", scheme: str = "http") -> None:
        self._header_limit = header_limit
        self._body_limit = body_limit
        self._client = client
        self._scheme = scheme
        self._parser = httptools.HttpRequestParser(self)
        self._parsed: list[Request | RequestError] = []
        self._error: RequestError | None = None
        self._now = 0.0
        self._url = b""
        self._headers: list[Header] = []
        self._first_values: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._parts: list[bytes] = []
        self._head_bytes = 0
        self._raw_bytes = 0
        self._began = False
        self._in_head = False
        self._keep_alive = False
        self._version = ""
        self._method = ""
        self._length = 0
        self._stopped = False
        self._resuming = False
        self.mid_request = False
        """A request has begun and is not whole."""
        self.began_at = 0.0
        """Loop time at which the last request began."""
        self.body_bytes = 0
        """Bytes of that request's body so far."""
        self.awaits_continue = False
        """Its client waits for `100 Continue` before it sends the body."""
        self.head_checked = False
        """For whoever looks at `head` once a request."""
        self.refused = False
        """A request was refused: nothing that follows can be trusted, and nothing more is parsed."""

    @property
    def method(self) -> str:
        """The method of the last request whose head has arrived; empty before the first."""
        return self._method

    @property
    def path(self) -> str:
        """The path of the last request that began, as far as it has arrived."""
        return self._url.partition(b"?")[0].decode("latin-1")

    @property
    def in_body(self) -> bool:
        """The head of a request has come, and not all of its body."""
        return self.mid_request and not self._in_head

    def head(self) -> Request:
        """The request that has begun, without a body; its head has come. Raises RequestError."""
        return self._request(b"", None)

    def stop(self) -> None:
        """Forget what has come of a request, and what follows."""
        self.refused = True
        self.mid_request = self.awaits_continue = False
        self._headers = []
        self._body = b""
        self._parts = []

    def feed(self, data: bytes, now: float) -> list[Request | RequestError]:
        """Parse the next bytes, read at loop time `now`; the requests that they complete, in order, and at the end
        the error of a bad one."""
        parsed: list[Request | RequestError] = []
        self._parsed = parsed
        self._now = now
        self._began = False
        size = len(data)
        while data and not self.refused:
            try:
                try:
                    self._parser.feed_data(data)
                    data = b""
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._ignore_upgrade()
            except httptools.HttpParserError as error:
                self._refuse(self._error or malformed(f"not a proper HTTP/1.1 request: {error}"))
        if self.mid_request and not self._began:
            self._count(size)
        return parsed

    def _ignore_upgrade(self) -> None:
        """Go on with the body (RFC 9110 section 7.8 lets a server ignore Upgrade, and Java's client asks for h2c with
        every first request). The parser stops after such a head, so a new one gets a plain head with the same framing.
        """
        self._parser = httptools.HttpRequestParser(self)
        self._resuming = True
        framing = b"transfer-encoding: chunked" if self._length == CHUNKED else b"content-length: %d" % self._length
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        self._url = b""
        self._headers = []
        self._body = b""
        self._parts = []
        self.head_checked = False
        self._head_bytes = self._raw_bytes = self.body_bytes = 0
        self._began = self._in_head = self.mid_request = True
        self.began_at = self._now

    def on_url(self, part: bytes) -> None:
        if not self._resuming:
            self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._in_head:  # else a trailer, which may be dropped (RFC 9110 section 6.5.1)
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._resuming:
            self._resuming = self._stopped = False
            return
        self._in_head = False
        self._stopped = self._parser.should_upgrade()
        self._method = self._parser.get_method().decode("ascii")
        self._head_bytes += len(self._url)
        if self._head_bytes > self._header_limit:
            self._raise(431, f"the request's head has more than {self._header_limit} bytes", _TOO_LARGE)
        self._version = self._parser.get_http_version()
        self._keep_alive = self._parser.should_keep_alive()
        if len(self._headers) > HEADER_COUNT_LIMIT:
            self._raise(431, f"more than {HEADER_COUNT_LIMIT} headers", _TOO_LARGE)
        self._first_values = values = first_values(self._headers)
        usual = usual_length(self._version, values) if len(values) == len(self._headers) else None
        self._length = length = self._body_length() if usual is None else usual
        if length > self._body_limit:
            self._raise(413, f"the body has {length} bytes, the limit is {self._body_limit}", _TOO_LARGE)
        if b"upgrade" in values and b"websocket" in values[b"upgrade"].lower():
            message = 'WebSocket is not served here; use HTTP requests, with "stream": true for events as they come'
            self._raise(400, message, "websocket_unsupported")
        expected = values.get(b"expect")
        if expected is not None:
            if expected.lower() != b"100-continue":
                self._raise(417, "the only expectation understood is 100-continue", "unsupported_expectation")
            self.awaits_continue = self._version == "1.1" and (length > 0 or length == CHUNKED)

    def on_body(self, part: bytes) -> None:
        self.awaits_continue = False
        self.body_bytes += len(part)
        if self.body_bytes > self._body_limit:
            self._raise(413, f"the body has more than {self._body_limit} bytes", _TOO_LARGE)
        if len(part) >= PART_BYTES or len(self._body) >= PART_BYTES:
            if self._body:
                self._parts.append(bytes(self._body))
            self._body = part
        elif not self._body:
            self._body = part
        elif isinstance(self._body, bytes):
            self._body = bytearray(self._body) + part
        else:
            self._body += part

    def on_message_complete(self) -> None:
        if self._stopped and self._method != "CONNECT":
            return  # not complete: see _ignore_upgrade
        self.mid_request = self.awaits_continue = False
        if self._head_bytes > self._header_limit:
            self._raise(431, f"head and trailers have more than {self._header_limit} bytes", _TOO_LARGE)
        body, parts = bytes(self._body), self._parts
        self._body, self._parts = b"", []
        if not parts:
            self._parsed.append(self._request(body, None))
        elif self.body_bytes <= JOINED_BYTES:
            self._parsed.append(self._request(b"".join([*parts, body]), None))
        else:
            self._parsed.append(self._request(b"", [*parts, body]))

    def _request(self, body: bytes, parts: list[bytes] | None) -> Request:
        target = self._origin_form(self._method)
        path, _, query = target.partition(b"?")
        return Request(
            self._method,
            target,
            path.decode("latin-1"),
            query.decode("latin-1"),
            self._headers,
            body,
            self._version,
            self._keep_alive,
            self._client,
            request_id(self._first_values.get(b"x-request-id")),
            self._now,
            self._first_values,
            self._scheme,
            parts,
        )

    def _body_length(self) -> int:
        try:
            return body_length(self._version, self._headers)
        except RequestError as error:
            self._error = error  # the parser wraps what its callbacks raise
            raise

    def _origin_form(self, method: str) -> bytes:
        """The request target without scheme and authority (RFC 9112 section 3.2)."""
        target = self._url
        if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
            return target
        scheme, separator, rest = target.partition(b"://")
        if method == "CONNECT" or not separator or scheme.lower() not in {b"http", b"https"}:
            self._raise(400, "the request target must be a path", "malformed_request")
        slash = rest.find(b"/")
        return rest[slash:] if slash >= 0 else b"/"

    def _count(self, size: int) -> None:
        """Bound what the parser itself collects before it calls: an unfinished header line, chunk framing."""
        self._raw_bytes += size
        if self._in_head and self._raw_bytes > self._header_limit:
            self._refuse(RequestError(431, f"the request's head has more than {self._header_limit} bytes", _TOO_LARGE))
            return
        framed = min(2 * self._body_limit, FRAMING_BYTES + FRAMING_RATIO * self.body_bytes)
        if self._raw_bytes > self._header_limit + framed:
            self._refuse(RequestError(413, "the body's chunks are too many and too small", _TOO_LARGE))

    def _raise(self, status: int, message: str, code: str) -> NoReturn:
        self._error = RequestError(status, message, code)
        raise self._error

    def _refuse(self, error: RequestError) -> None:
        self.stop()
        self._parsed.append(error)


def request_id(given: bytes | None) -> str:
    """The client's x-request-id if it is 1 to 128 printable ASCII characters, else 32 random hex digits."""
    if given and len(given) <= REQUEST_ID_LIMIT:
        text = given.decode("latin-1")
        if text.isascii() and text.isprintable():
            return text
    return f"{getrandbits(128):032x}"
