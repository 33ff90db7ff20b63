"""What an engine reports of a reply, read from the reply's tail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_FIELD = re.compile(
    rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|cached_tokens|cache_read_input_tokens|'
    rb'cache_creation_input_tokens)"\s*:\s*(\d{1,12})\s*[,}]'
)
_SAME: Final = {b"output_tokens": b"completion_tokens"}


@dataclass(slots=True)  # not frozen: every reply makes one
class Usage:
    """Tokens of one reply; `cached_tokens` and `completion_tokens` are None where the engine does not tell."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None = None


def read_usage(tail: bytes, *, identity: bool) -> Usage | None:
    """The last `usage` object in a reply's last bytes; None where there is none that makes sense.

    It may be of chat and text completions and embeddings (`prompt_tokens`), of Responses (`input_tokens`, with
    `cached_tokens` among them) or of Messages (`input_tokens` without those that were read from the cache or written
    to it). `identity`: the body is not compressed. A malformed usage is the engine's matter: the reply passes all the
    same.
    """
    if not identity:
        return None
    start = -1
    for match in _USAGE.finditer(tail):  # not a client's text that says so, such as "user":"usage"
        start = match.start()
    if start < 0:
        return None
    numbers: dict[bytes, int] = {}
    for name, digits in _FIELD.findall(tail, start):
        numbers.setdefault(_SAME.get(name, name), int(digits))
    completion, cached = numbers.get(b"completion_tokens"), numbers.get(b"cached_tokens")
    prompt = numbers.get(b"prompt_tokens")
    if prompt is not None:
        return Usage(prompt, cached, completion)
    given = numbers.get(b"input_tokens")
    if given is None:
        return None
    read, created = numbers.get(b"cache_read_input_tokens"), numbers.get(b"cache_creation_input_tokens")
    if read is None and created is None:
        return Usage(given, cached, completion)
    return Usage(given + (read or 0) + (created or 0), read, completion)
