"""The jinja2 environment of chat templates, as the documentation of `transformers` describes it.

An immutable sandbox with trimmed blocks, loop controls, `{% generation %}` blocks, `tojson` without HTML escapes,
`raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False).encode
"""Made once: `json.dumps` makes an encoder each time."""


class ChatTemplateError(ValueError):
    """The template is missing, malformed, or refused the messages; the message says which."""


class GenerationBlocks(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; for rendering it is only its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 reads it as a class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """A block with a scope of its own, as a call block has."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_body"), [], [], body)
        block.set_lineno(line)
        return block

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def jinja_environment(now: Callable[[], datetime]) -> jinja2.Environment:
    """An environment whose `strftime_now` asks `now`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda fmt: now().strftime(fmt)
    return environment


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`json.dumps` without the HTML escapes of jinja2's own filter."""
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        return _ENCODE(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    """What templates call to refuse a conversation."""
    raise jinja2.TemplateError(message)
