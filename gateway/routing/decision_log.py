"""A gateway's log of its decisions, and how they turned out: what `warmroute replay` can run again with other policies.

JSON lines, one a request that was routed and has ended:

    {"v": 1, "time": 1753948800.125, "pool": "chat", "worker": "vllm-0", "outcome": "completed", "block_tokens": 64,
     "prompt_tokens": 6758, "matched_tokens": 6144, "cached_tokens": 6144, "reply_tokens": 212,
     "first_byte_seconds": 0.213, "session": "", "keys": "9f86d081884c7d65..."}

`time` is when the worker was picked, in seconds since 1970. `matched_tokens` is what was expected to be cached,
`cached_tokens` what the engine said, null where it said nothing; `first_byte_seconds` is counted from the pick, null
for a reply that was not streamed or never came. `session` is a hash of the session that the request named, "" for none.
`keys` are the prompt's index keys, 16 hexadecimal digits each: hashes, from which no text can be read; but equal ones
say that two prompts begin alike. Readers ignore fields that they do not know.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

VERSION: Final = 1
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """One line of the log; see the module."""

    time: float
    pool: str
    worker: str
    outcome: str
    block_tokens: int
    prompt_tokens: int
    matched_tokens: int
    keys: Sequence[int]
    cached_tokens: int | None = None
    reply_tokens: int | None = None
    first_byte_seconds: float | None = None
    session: str = ""

    def to_json(self) -> bytes:
        """The line, without its end."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "keys"}
        # A tenth of the time that a format for each key takes.
        return orjson.dumps({"v": VERSION, **fields, "keys": struct.pack(f">{len(self.keys)}Q", *self.keys).hex()})

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> LoggedDecision:
        """The decision of a line that was parsed. Raises ValueError naming the field for what is no such line."""
        if fields.get("v") != VERSION:
            raise ValueError(f"v is {fields.get('v')!r}; this release reads {VERSION}")
        packed = fields.get("keys")
        if not isinstance(packed, str) or len(packed) % _DIGITS:
            raise ValueError(f"keys is no text of {_DIGITS} hexadecimal digits a key")
        try:
            keys = [int(packed[start : start + _DIGITS], 16) for start in range(0, len(packed), _DIGITS)]
        except ValueError:
            raise ValueError("keys holds what is no hexadecimal digit") from None
        return cls(
            time=_number(fields, "time"),
            pool=str(fields.get("pool", "")),
            worker=str(fields.get("worker", "")),
            outcome=str(fields.get("outcome", "")),
            block_tokens=_count(fields, "block_tokens", least=1),
            prompt_tokens=_count(fields, "prompt_tokens", least=1),
            matched_tokens=_count(fields, "matched_tokens"),
            keys=keys,
            cached_tokens=None if fields.get("cached_tokens") is None else _count(fields, "cached_tokens"),
            reply_tokens=None if fields.get("reply_tokens") is None else _count(fields, "reply_tokens"),
            first_byte_seconds=None
            if fields.get("first_byte_seconds") is None
            else _number(fields, "first_byte_seconds"),
            session=str(fields.get("session", "")),
        )


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{name} is {value!r}; it must be a number of at least 0")
    return float(value)


def _count(fields: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    value = fields.get(name)
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return value
