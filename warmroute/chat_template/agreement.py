"""On which chats minijinja prints what jinja2 prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Flag, auto
from typing import Any, Final

_INT64: Final = 1 << 63
# Python writes floats outside of these with an exponent, and NaN otherwise than Rust.
_LEAST_PLAIN: Final = 1e-4
_MOST_PLAIN: Final = 1e16


class Agreement(Flag):
    """On which chats the two renderers agree: on plain ones, and where the flags say so on others."""

    PLAIN = 0
    CALLS = auto()
    """Also on those whose tool calls have arguments that languages print apart: floats, nulls, integers beyond 64
    bits."""
    TOOLS = auto()
    """Also on those whose tools hold floats that Python writes with an exponent."""
    ALL = CALLS | TOOLS


def is_alike(variables: Mapping[str, Any], agreement: Agreement) -> bool:
    """Whether all that a template may print of these variables prints alike in both. Raises RecursionError for deep
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
    """Whether the arguments of all tool calls are strings, booleans and integers, however nested."""
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
    """Whether it holds no number that Rust writes otherwise than Python: with an exponent, or without one."""
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
