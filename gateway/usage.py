"""What an engine reports of a reply, read from the reply's tail."""

from __future__ import annotations

import re
from dataclasses import dataclass


def _field(names: bytes) -> re.Pattern[bytes]:
    return re.compile(rb'"(?:' + names + rb')"\s*:\s*(\d{1,12})\s*[,}]')


_OPENAI = _field(b"prompt_tokens")
_INPUT = _field(b"input_tokens")
_CACHED = _field(b"cached_tokens")
_CACHE_READ = _field(b"cache_read_input_tokens")
_CACHE_CREATION = _field(b"cache_creation_input_tokens")
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_COMPLETION = _field(b"completion_tokens|output_tokens")


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
    completion = _number(_COMPLETION, tail, start)
    prompt = _number(_OPENAI, tail, start)
    if prompt is not None:
        return Usage(prompt, _number(_CACHED, tail, start), completion)
    given = _number(_INPUT, tail, start)
    if given is None:
        return None
    read, created = _number(_CACHE_READ, tail, start), _number(_CACHE_CREATION, tail, start)
    if read is None and created is None:
        return Usage(given, _number(_CACHED, tail, start), completion)
    return Usage(given + (read or 0) + (created or 0), read, completion)


def _number(field: re.Pattern[bytes], tail: bytes, start: int) -> int | None:
    match = field.search(tail, start)
    return None if match is None else int(match[1])
