"""The same bytes give the same requests, however they are cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.http.request_parser import HEADER_COUNT_LIMIT, RequestParser

HEADER_LIMIT = 1024
BODY_LIMIT = 4096

TOKEN = st.text("abcXYZ-09_", min_size=1, max_size=8)
VALUE = st.text('abc XYZ,;="/é', max_size=12)
RESERVED = {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "x-request-id"}


@st.composite
def rendered_requests(draw: st.DrawFn) -> bytes:
    method = draw(st.sampled_from(["GET", "POST", "HEAD", "DELETE"]))
    path = "/" + draw(st.text("ab/%2?=&", max_size=10))
    headers = [
        (name, value)
        for name, value in draw(st.lists(st.tuples(TOKEN, VALUE), max_size=4))
        if name.lower() not in RESERVED
    ]
    lines = [f"{method} {path} HTTP/1.1", "Host: h", "X-Request-Id: id"]
    lines += [f"{name}: {value}" for name, value in headers]
    if draw(st.integers(0, 4)) == 0:
        lines += ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"]
    body = draw(st.binary(max_size=40)) if method == "POST" else b""
    if method == "POST" and draw(st.booleans()):
        cut = draw(st.integers(0, len(body)))
        parts = [part for part in (body[:cut], body[cut:]) if part]
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: t\r\n\r\n"
    elif method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def parse(pieces: list[bytes]) -> list[Request | tuple[int, str]]:
    parser = RequestParser(HEADER_LIMIT, BODY_LIMIT, "client")
    parsed = [item for piece in pieces for item in parser.feed(piece, 1.0)]
    return [(item.status, item.code) if isinstance(item, RequestError) else item for item in parsed]


def cut(stream: bytes, cuts: set[int]) -> list[bytes]:
    return [stream[start:end] for start, end in pairwise([0, *sorted(cuts), len(stream)])]


RESTS = st.sampled_from([b"", b"BAD", b"GET / HTTP/1.1\r\n\r\n"])


@given(st.lists(rendered_requests(), min_size=1, max_size=4), RESTS, st.data())
def test_cuts_do_not_matter(requests: list[bytes], rest: bytes, data: st.DataObject) -> None:
    stream = b"".join(requests) + rest
    cuts = data.draw(st.sets(st.integers(0, len(stream)), max_size=12))
    whole = parse([stream])
    assert [item for item in whole if isinstance(item, Request)] == [item for one in requests for item in parse([one])]
    assert parse(cut(stream, cuts)) == whole
    assert parse([bytes([byte]) for byte in stream]) == whole


def test_what_a_request_holds() -> None:
    (parsed,) = parse(
        [b"POST /v1?a=%20b HTTP/1.1\r\nHost: h\r\nX-Mixed:  V \t\r\nX-Request-Id: m\r\nContent-Length: 2\r\n\r\nhi"]
    )
    assert parsed == Request(
        method="POST",
        target=b"/v1?a=%20b",
        path="/v1",
        query="a=%20b",
        headers=[(b"host", b"h"), (b"x-mixed", b"V"), (b"x-request-id", b"m"), (b"content-length", b"2")],
        body=b"hi",
        version="1.1",
        keep_alive=True,
        client="client",
        request_id="m",
        arrived_at=1.0,
        first_values={},  # not compared
    )


@pytest.mark.parametrize("given_id", ["", "x" * 129, "a\tb", "caf\xe9"])
def test_a_request_id_that_could_spoil_a_log_is_replaced(given_id: str) -> None:
    (parsed,) = parse([f"GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: {given_id}\r\n\r\n".encode("latin-1")])
    assert isinstance(parsed, Request)
    assert len(parsed.request_id) == 32
    assert int(parsed.request_id, 16) >= 0


@pytest.mark.parametrize(
    ("target", "expected"),
    [(b"http://h:1/x?y", b"/x?y"), (b"HTTPS://h", b"/"), (b"/a//b?c?d", b"/a//b?c?d")],
)
def test_absolute_targets(target: bytes, expected: bytes) -> None:
    (parsed,) = parse([b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target])
    assert isinstance(parsed, Request)
    assert parsed.target == expected


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
def test_keep_alive(version: bytes, connection: bytes) -> None:
    (parsed,) = parse([b"GET / HTTP/%b\r\nHost: h\r\nConnection: %b\r\n\r\n" % (version, connection)])
    assert isinstance(parsed, Request)
    assert parsed.keep_alive == (connection == b"keep-alive")


def test_an_upgrade_is_ignored_and_what_follows_is_the_next_request() -> None:
    upgrade = b"Host: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"
    stream = (
        b"POST /1 HTTP/1.1\r\n%bContent-Length: 2\r\n\r\nhi" % upgrade + b"GET /2 HTTP/1.1\r\n%b\r\n" % upgrade
    ) * 500 + b"GET /3 HTTP/1.1\r\nHost: h\r\n\r\n"
    parsed = parse([stream])
    assert [item.path for item in parsed if isinstance(item, Request)] == ["/1", "/2"] * 500 + ["/3"]


HOST = b"Host: h\r\n"
REFUSED = {
    "two lengths": (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "length and chunked": (
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunked and length": (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunked in 1.0": (b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "another coding": (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "obscured coding": (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "space before colon": (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 4\r\n\r\nabcd", 400),
    "folded header": (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: h\n\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "null byte": (b"GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n", 400),
    "bad chunk size": (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", 400),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "http/2 request line": (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
    "http/0.9": (b"GET /\r\n\r\n", 505),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "connect": (b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "upgrade of a bad target": (b"GET * HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
    "upgrade of a bad target with a body": (
        b"POST foo HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\nabcd",
        400,
    ),
    "other scheme": (b"GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "expectation": (b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\n", 417),
    "long head": (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * HEADER_LIMIT + b"\r\n\r\n", 431),
    "long unfinished head": (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 3 * HEADER_LIMIT, 431),
    "long target": (b"GET /" + b"x" * HEADER_LIMIT + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
    "long announced body": (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4097\r\n\r\n", 413),
    "long chunked body": (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1001\r\n" + b"x" * 4097 + b"\r\n0\r\n\r\n",
        413,
    ),
    "long trailer": (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: " + b"x" * HEADER_LIMIT + b"\r\n\r\n",
        431,
    ),
    "endless chunk extension": (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 3 * BODY_LIMIT,
        413,
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("size", [1, 100])
def test_what_is_refused(kind: str, size: int) -> None:
    stream, status = REFUSED[kind]
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
    stream += smuggled
    parsed = parse([stream[start : start + size] for start in range(0, len(stream), size)])
    assert [item if isinstance(item, Request) else item[0] for item in parsed] == [status]


def test_too_many_headers() -> None:
    parser = RequestParser(1 << 20, BODY_LIMIT)
    lines = b"".join(b"X-%d: y\r\n" % number for number in range(HEADER_COUNT_LIMIT))
    (refused,) = parser.feed(b"GET / HTTP/1.1\r\nHost: h\r\n" + lines + b"\r\n", 0.0)
    assert isinstance(refused, RequestError)
    assert refused.status == 431


def test_the_limits_themselves_are_allowed() -> None:
    body = b"x" * BODY_LIMIT
    (parsed,) = parse([b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)])
    assert isinstance(parsed, Request)
    assert parsed.body == body


def test_two_connections_do_not_share_anything() -> None:
    one, two = RequestParser(HEADER_LIMIT, BODY_LIMIT), RequestParser(HEADER_LIMIT, BODY_LIMIT)
    assert one.feed(b"GET /1 HTTP/1.1\r\nHo", 0.0) == []
    (second,) = two.feed(b"GET /2 HTTP/1.1\r\nHost: h\r\nX-Request-Id: i\r\n\r\n", 0.0)
    (first,) = one.feed(b"st: h\r\nX-Request-Id: i\r\n\r\n", 0.0)
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert first == replace(second, target=b"/1", path="/1")
