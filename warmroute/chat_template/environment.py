"""The jinja2 environment of chat templates, as the documentation of `transformers` describes it.

An immutable sandbox with trimmed blocks, loop controls, `{% generation %}` blocks, `tojson` without HTML escapes,
`raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

STEPS: Final = 200_000
"""Loop rounds and calls of one rendering, which take a second at most. A chat of ten thousand messages takes half of
them where a template's work is linear in the chat; in some templates it is quadratic."""
INDENTED: Final = 16
"""How many times as long as without them a JSON text may become by indents; 4 in templates of models."""
_COUNTED: Final = "_counted"

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False).encode
"""Made once, since `json.dumps` makes an encoder each time."""


class ChatTemplateError(ValueError):
    """The template is missing or malformed, or refused the messages. The text says which."""


class EndlessTemplateError(jinja2.TemplateError):
    """A rendering exceeds its bound of steps, instructions or characters."""


class _PlainGenerator(CodeGenerator):
    """Works nothing out: what a template says of constants would be computed while it is compiled, without bounds."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that bounds each rendering to STEPS, so that no template and no chat blocks a thread for ever.

    Call `begin` before each rendering, on its thread.
    """

    code_generator_class = _PlainGenerator

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, optimized=False)
        self._steps = threading.local()
        self.filters[_COUNTED] = self._counted

    def begin(self) -> None:
        self._steps.left = STEPS

    def bounded(self, tree: nodes.Template) -> nodes.Template:
        """Make the template's loops count their rounds. Changes and returns the tree."""
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
        tree.set_environment(self)
        return tree

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Counts a step, since macros and recursive loops can call themselves."""
        self._step()
        return super().call(context, function, *args, **kwargs)

    @jinja2.pass_context  # without it jinja2 evaluates the filter of a constant at compile time
    def _counted(self, context: Context, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _step(self) -> None:
        self._steps.left -= 1
        if self._steps.left < 0:
            raise EndlessTemplateError(f"the rendering takes more than {STEPS} steps")


class GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's text for training. Rendering only needs its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 reads it as a class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """A call block, since the body needs its own scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_body"), [], [], body)
        block.set_lineno(line)
        return block

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def jinja_environment(now: Callable[[], datetime]) -> BoundedEnvironment:
    """An environment whose `strftime_now` asks `now`."""
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols])
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
    if indent is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
    # What lies deep is indented far.
    room = INDENTED * len(_ENCODE(value)) + INDENTED
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces: list[str] = []
    for piece in encoder.iterencode(value):
        room -= len(piece)
        if room < 0:
            raise jinja2.TemplateError(f"tojson makes more than {INDENTED} times as much of what is nested deeply")
        pieces.append(piece)
    return "".join(pieces)


def raise_exception(message: str) -> None:
    """Templates call it to refuse a conversation. Raises jinja2.TemplateError."""
    raise jinja2.TemplateError(message)
