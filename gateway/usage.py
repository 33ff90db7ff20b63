"""What an engine reports of a reply, read from the reply's tail."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,12})\s*[,}]')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,12})\s*[,}]')


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply; `cached_tokens` is None where the engine does not tell."""

    prompt_tokens: int
    cached_tokens: int | None


def read_usage(tail: bytes, *, identity: bool) -> Usage | None:
    """The last `usage` object in a reply's last bytes; None where there is none that makes sense.

    `identity`: the body is not compressed. A malformed usage is the engine's matter: the reply passes all the same.
    """
    if not identity:
        return None
    start = tail.rfind(b'"usage"')
    if start < 0:
        return None
    prompt = _PROMPT.search(tail, start)
    if prompt is None:
        return None
    cached = _CACHED.search(tail, start)
    return Usage(int(prompt[1]), int(cached[1]) if cached else None)
