"""What of a message's head passes through the gateway; no I/O."""

from __future__ import annotations

from functools import lru_cache

from gateway.http.message import Header, Request, end_to_end, render_headers
from gateway.http.upstream_connection import ReplyHead
from warmroute.process.addresses import address

_REPLACED = frozenset(
    {
        b"authorization",  # the client's credentials are for the gateway, never for an engine
        b"x-api-key",
        b"content-length",
        b"expect",  # the gateway has answered it and holds the whole body
        b"host",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-request-id",
        b"x-warmroute-worker",  # for this gateway (`gateway.requests.pins`)
    }
)
OWN_PREFIX = b"x-warmroute-"
"""What the gateway alone says; a worker that does is not repeated."""
_REPLY_REPLACED = frozenset({b"content-length", b"x-request-id"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


def request_head(
    request: Request,
    host: str,
    port: int,
    body_bytes: int,
    authorization: bytes = b"",
    added: tuple[Header, ...] = (),
) -> bytes:
    """The head of `request` as it goes to the worker at host:port, with a body of `body_bytes` bytes.

    `authorization`: value of that header, the pool's own; empty: none. `added`: headers in place of the client's of the
    same names."""
    forwarded: list[bytes] = []
    if request.header(b"x-forwarded-for") is not None:
        forwarded.extend(value for name, value in request.headers if name == b"x-forwarded-for")
    if request.client:
        forwarded.append(request.client.encode("ascii"))
    headers = end_to_end(request.headers, _REPLACED | {name for name, _ in added} if added else _REPLACED)
    headers.extend(added)
    headers.append((b"x-forwarded-proto", request.header(b"x-forwarded-proto") or request.scheme.encode("ascii")))
    headers.append((b"x-request-id", request.request_id.encode("ascii")))
    if forwarded:
        headers.append((b"x-forwarded-for", b", ".join(forwarded)))
    if authorization:
        headers.append((b"authorization", authorization))
    if body_bytes or request.method in _WITH_BODY:
        headers.append((b"content-length", b"%d" % body_bytes))
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (
        request.method.encode("ascii"),
        request.target,
        _authority(host, port),
        render_headers(headers),
    )


@lru_cache(maxsize=1024)
def _authority(host: str, port: int) -> bytes:
    return address(host, port).encode("ascii")


def reply_headers(head: ReplyHead, added: tuple[Header, ...]) -> list[Header]:
    """The headers of a worker's reply as they go to the client, without framing, with those of the gateway in place of
    any that look like them."""
    own = {name for name, _ in added}
    headers = [
        header
        for header in end_to_end(head.headers, _REPLY_REPLACED)
        if header[0] not in own and not header[0].startswith(OWN_PREFIX)
    ]
    headers.extend(added)
    return headers
