"""On which chats minijinja gives the same text as jinja2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Flag, auto
from typing import Any, Final

_INT64: Final = 1 << 63
# Python writes floats outside of these with an exponent, Rust does not. They also write NaN differently.
_LEAST_PLAIN: Final = 1e-4
_MOST_PLAIN: Final = 1e16


class Agreement(Flag):
    """On which chats the two renderers agree: always on plain ones, and on those of the set flags."""

    PLAIN = 0
    CALLS = auto()
    """Chats whose tool calls have arguments that Python and Rust may print differently: floats, nulls, integers beyond
    64 bits."""
    TOOLS = auto()
    """Chats whose tools have floats that Python writes with an exponent."""
    ALL = CALLS | TOOLS


def is_alike(variables: Mapping[str, Any], agreement: Agreement) -> bool:
    """Whether both renderers print every value of these variables the same way. Raises RecursionError for deep
    nesting."""
    for name, value in variables.items():
        if name == "messages":
            if not all(map(_prints_alike, filter(None, (message.get("tools") for message in value)))):
                return False
            if Agreement.CALLS not in agreement and not has_plain_calls(value):
                return False
        elif not (isinstance(value, str) or (name == "tools" and Agreement.TOOLS in agreement) or _prints_alike(value)):
            return False
    return True


def has_plain_calls(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the arguments of all tool calls are strings, booleans and 64-bit integers, at any depth."""
    return all(_is_plain(calls) for message in messages if (calls := message.get("tool_calls")))


def _is_plain(value: object) -> bool:
    match value:
        case str() | bool():
            return True
        case int():
            return -_INT64 <= value < _INT64
        case dict():
            return all(map(_is_plain, value.values()))
        case list():
            return all(map(_is_plain, value))
        case _:
            return False


def _prints_alike(value: object) -> bool:
    """Whether it has no number that Python and Rust write differently."""
    match value:
        case None | str() | bool():
            return True
        case int():
            return -_INT64 <= value < _INT64
        case float():
            return value == 0 or _LEAST_PLAIN <= abs(value) < _MOST_PLAIN
        case dict():
            return all(map(_prints_alike, value.values()))
        case list():
            return all(map(_prints_alike, value))
        case _:
            return False
