"""HTTP/1.1 values and header rules (RFC 9110, RFC 9112); no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

Header = tuple[bytes, bytes]
"""A lower-case name and a value without surrounding whitespace."""

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection, never forwarded (RFC 9110 section 7.6.1)."""

_CONNECTION_OPTIONS = frozenset({b"", b"close", b"keep-alive"})


@dataclass(slots=True)  # not frozen: freezing triples the cost of making one, and every request makes one
class Request:
    """One request with its whole body."""

    method: str
    target: bytes
    """path?query as it came, in origin form; `*` for OPTIONS."""
    path: str
    """The target up to `?`, not percent-decoded."""
    query: str
    """The target after `?`; empty when there is none."""
    headers: list[Header]
    """As they came, in order, duplicates kept."""
    body: bytes
    version: str
    """`1.0` or `1.1`."""
    keep_alive: bool
    """The client wants the connection kept after the reply."""
    client: str
    """The client's IP address; empty for a socket without one."""
    request_id: str
    """The client's x-request-id where it is short and printable, else a random one."""
    arrived_at: float
    """Loop time at which the last byte of the request was parsed."""
    first_values: dict[bytes, bytes] = field(repr=False, compare=False)
    """What the function of this name makes of `headers`, as they came."""
    scheme: str = "http"
    """`http` or `https`, as the client's connection is."""
    parts: list[bytes] | None = None
    """A large body in pieces, until they are joined to `body`."""

    @property
    def body_bytes(self) -> int:
        """The body's size."""
        return len(self.body) if self.parts is None else sum(map(len, self.parts))

    def header(self, name: bytes) -> bytes | None:
        """The first value of the header with this lower-case name; None when there is none."""
        return self.first_values.get(name)


def first_values(headers: list[Header]) -> dict[bytes, bytes]:
    """The first value of each header, by name."""
    return dict(reversed(headers))


def end_to_end(headers: Iterable[Header], drop: Collection[bytes] = ()) -> list[Header]:
    """`headers` without the hop-by-hop ones, those that `Connection` names, and those in `drop`."""
    kept: list[Header] = []
    named: set[bytes] = set()
    for item in headers:
        name = item[0]
        if name in HOP_BY_HOP:
            if name == b"connection":
                named.update(option.strip() for option in item[1].lower().split(b","))
        elif name not in drop:
            kept.append(item)
    named -= _CONNECTION_OPTIONS
    return [item for item in kept if item[0] not in named] if named else kept


def render_headers(headers: Iterable[Header]) -> bytes:
    """The headers as lines, each ended by CRLF."""
    lines = [b": ".join(item) for item in headers]
    lines.append(b"")
    return b"\r\n".join(lines)


def media_type(content_type: bytes | None) -> bytes:
    """The type of a content-type header, lower-case, without parameters; empty when there is none."""
    return b"" if content_type is None else content_type.partition(b";")[0].strip().lower()
