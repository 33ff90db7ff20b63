"""Where a request's body ends, decided strictly: what two parsers could read differently is refused, never guessed.

llhttp in its strict mode already refuses bare CR and LF, folded lines, space before the colon, bad characters, a
malformed, duplicate or overflowing Content-Length, and Content-Length beside Transfer-Encoding. Those that decide
about smuggling are checked here again, since a build of the parser with leniencies must not open a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.http.errors import RequestError
from gateway.http.message import Header

CHUNKED = -1
"""The body's length is known only at its end."""

_RELEVANT = frozenset({b"content-length", b"transfer-encoding", b"host"})


def malformed(message: str) -> RequestError:
    """The error of a request that is not proper HTTP/1.1."""
    return RequestError(400, message, "malformed_request")


def body_length(version: str, headers: Iterable[Header]) -> int:
    """The body's length in bytes, or `CHUNKED`. Raises RequestError for what RFC 9112 sections 3.2 and 6 forbid."""
    lengths: list[bytes] = []
    codings: list[bytes] = []
    hosts = 0
    for name, value in headers:
        if name in _RELEVANT:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                lengths.append(value)
            else:
                codings.append(value)
    if version not in {"1.0", "1.1"}:
        raise RequestError(505, f"HTTP/{version} is not served here; use HTTP/1.1", "unsupported_version")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise malformed(f"a request has exactly one Host header, this one has {hosts}")
    if codings:
        return _coded(version, codings, lengths)
    if not lengths:
        return 0
    if len(lengths) > 1 or not lengths[0].isdigit():
        raise malformed("Content-Length must be given once, in decimal digits")
    return int(lengths[0])


def usual_length(version: str, headers: Mapping[bytes, bytes]) -> int | None:
    """What `body_length` gives for the usual request, whose headers are all different; None for any other."""
    if version != "1.1" or b"host" not in headers or b"transfer-encoding" in headers:
        return None
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else None


def _coded(version: str, codings: list[bytes], lengths: list[bytes]) -> int:
    if lengths:
        raise malformed("Content-Length and Transfer-Encoding exclude each other; send one of them")
    if version == "1.0":
        raise malformed("HTTP/1.0 has no Transfer-Encoding; send Content-Length")
    if len(codings) > 1 or codings[0].lower() != b"chunked":
        raise RequestError(501, "the only Transfer-Encoding understood is chunked", "unsupported_transfer_encoding")
    return CHUNKED
