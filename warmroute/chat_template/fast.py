"""minijinja in place of jinja2, for templates on which the two agree.

It renders several times faster. It is another implementation, so it is trusted with a template only after it gave
jinja2's output on every probe (`probes.py`), and what it cannot render jinja2 renders, or refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final

import minijinja

from warmroute.chat_template.environment import raise_exception, tojson
from warmroute.chat_template.inspection import ContentFormat
from warmroute.chat_template.probes import probes

_NAME: Final = "chat"
_INT64: Final = 1 << 63
_GENERATION: Final = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class FastTemplate:
    """One template in minijinja."""

    def __init__(self, source: str, now: Callable[[], datetime]) -> None:
        """Raises minijinja.TemplateError where minijinja cannot read the source."""
        environment = minijinja.Environment(trim_blocks=True, lstrip_blocks=True, pycompat=True)
        environment.add_filter("tojson", tojson)
        # Python takes other characters for blanks than Rust does.
        environment.add_filter("trim", _trim)
        environment.add_global("raise_exception", raise_exception)
        environment.add_global("strftime_now", lambda fmt: now().strftime(fmt))
        environment.add_template(_NAME, _GENERATION.sub(_plain_block, source))
        self._environment = environment

    def render(self, variables: Mapping[str, Any]) -> str | None:
        """The text; None where it could not be rendered, for whatever reason: jinja2 has the last word."""
        try:
            return self._environment.render_template(_NAME, **variables)
        except Exception:  # noqa: BLE001  raise_exception and filters raise through it what they like
            return None


class Agreement(Enum):
    """On which chats the two renderers agree."""

    ALL = "all"
    PLAIN = "plain"
    """Those whose tool calls have no arguments that languages print apart: floats, nulls, integers beyond 64 bits."""


def agreeing(
    fast: FastTemplate,
    reference: Callable[[Mapping[str, Any]], str],
    content_format: ContentFormat,
    special_tokens: Mapping[str, str],
) -> Agreement | None:
    """Compare on every probe; None where they differ on plain chats. What one refuses the other must refuse too."""
    agreement = Agreement.ALL
    for plain, probe in probes(content_format):
        if not plain and agreement is Agreement.PLAIN:
            continue
        variables = {**special_tokens, **probe}
        try:
            expected = reference(variables)
        except Exception:  # noqa: BLE001  templates refuse with any error
            expected = None
        if fast.render(variables) != expected:
            if plain:
                return None
            agreement = Agreement.PLAIN
    return agreement


def has_plain_calls(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all that is in the tool calls prints alike in every language. Raises RecursionError for deep nesting."""
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


def _trim(value: object, chars: str | None = None) -> str:
    return str(value).strip(chars)


def _plain_block(match: re.Match[str]) -> str:
    """minijinja knows no generation blocks: a condition that holds takes the same room."""
    before, end, after = match.groups()
    return f"{{%{before} endif {after}%}}" if end else f"{{%{before} if true {after}%}}"
