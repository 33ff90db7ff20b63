"""What a request says of itself for routing and scheduling: hints, which never identify anybody and never refuse a
request. One that is malformed is ignored, and counted by whoever reads it. No I/O.

    priority   body `priority`, header X-Request-Priority, `nvext.agent_hints.priority`; higher is more important
    session    body `session_id`, header X-Session-ID, or another gateway's header for it; else `prompt_cache_key`

The first that is there wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.http.message import Request

PRIORITY_LIMIT: Final = 2**31 - 1
"""Engines keep priorities in integers of at least this size."""
SESSION_LIMIT: Final = 256
"""Characters of a session's name."""
PRIORITY_HEADER: Final = b"x-request-priority"
SESSION_HEADERS: Final = (b"x-session-id", b"x-session-affinity", b"x-correlation-id", b"x-conversation-id")
HINT_HEADERS: Final = frozenset({PRIORITY_HEADER, *SESSION_HEADERS})
HINT_FIELDS: Final = frozenset({"priority", "session_id", "prompt_cache_key", "nvext"})
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,10}")
_NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Hints:
    """What was understood. `ignored`: names of the hints that were malformed, of `priority` and `session`."""

    priority: int | None = None
    """Higher is more important."""
    session: str | None = None
    """1 to 256 characters, as the client chose them."""
    ignored: tuple[str, ...] = ()


NO_HINTS: Final = Hints()


def read_hints(request: Request, fields: Mapping[str, Any] | None) -> Hints:
    """The hints of a request; `fields` is its parsed body, None for a form."""
    fields = fields or _NOTHING
    if HINT_HEADERS.isdisjoint(request.first_values) and HINT_FIELDS.isdisjoint(fields):
        return NO_HINTS  # most requests
    ignored: list[str] = []
    priority = _priority(request, fields, ignored)
    session = _session(request, fields, ignored)
    return Hints(priority, session, tuple(ignored))


def _priority(request: Request, fields: Mapping[str, Any], ignored: list[str]) -> int | None:
    given: Any = fields.get("priority")
    if given is None and (header := request.header(PRIORITY_HEADER)) is not None:
        given = int(header) if _INTEGER.fullmatch(header) else header
    if given is None:
        nvext = fields.get("nvext")
        hints = nvext.get("agent_hints") if isinstance(nvext, dict) else None
        given = hints.get("priority") if isinstance(hints, dict) else None
    if given is None or (type(given) is int and -PRIORITY_LIMIT <= given <= PRIORITY_LIMIT):
        return given
    ignored.append("priority")
    return None


def _session(request: Request, fields: Mapping[str, Any], ignored: list[str]) -> str | None:
    given: Any = fields.get("session_id")
    for name in SESSION_HEADERS:
        if given is None and (header := request.header(name)) is not None:
            given = header.decode("latin-1")
    if given is None:
        given = fields.get("prompt_cache_key")
    if given is None or (isinstance(given, str) and 1 <= len(given) <= SESSION_LIMIT):
        return given
    ignored.append("session")
    return None
