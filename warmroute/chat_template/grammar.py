"""Which templates are rendered that come from workers: those that say nothing but what templates of models need.

Whoever reaches an indexer can offer a template, and Jinja can be told to count, to pad and to multiply. So a template
is read, not run: what is not listed here is refused, by its name. The lists are what some 90 templates of models use,
those of `trl` and of vLLM's examples, and their near kin. Together with bounds on constants this leaves out what makes
much of nothing. How much a rendering takes in all is another matter: `cost`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import jinja2
from jinja2 import nodes

from warmroute.chat_template.environment import ChatTemplateError, GenerationBlocks, jinja_environment

SOURCE_LIMIT: Final = 131_072
"""Characters of a source; the longest known have 40,000."""
NODES_LIMIT: Final = 20_000
DEPTH_LIMIT: Final = 64
"""Nodes within nodes; 22 in templates of models."""
LOOPS_LIMIT: Final = 6
"""Loops within loops, a macro's own counted apart; 3 in templates of models."""
NUMBER_LIMIT: Final = 1_000_000
INDENT_LIMIT: Final = 16

_NODES: Final = frozenset(
    {
        *("Template", "Output", "TemplateData", "Name", "NSRef", "Const", "List", "Tuple", "Dict", "Pair", "Keyword"),
        *("For", "If", "Assign", "AssignBlock", "Macro", "Call", "CallBlock", "Filter", "Test", "Getattr", "Getitem"),
        *("Slice", "CondExpr", "And", "Or", "Not", "Compare", "Operand", "Add", "Sub", "Mul", "Div", "FloorDiv", "Mod"),
        *("Neg", "Pos", "Concat", "Break", "Continue", "ExtensionAttribute", "ExprStmt"),
    }
)
FILTERS: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        ("capitalize", "count", "dictsort", "first", "float", "int", "items", "last", "length", "list", "lower"), 0
    ),
    **dict.fromkeys(("reverse", "safe", "string", "sort", "title", "unique", "upper", "e", "escape"), 0),
    **dict.fromkeys(("default", "d", "tojson"), 2),
    **dict.fromkeys(("join", "trim", "format"), 1),
    **dict.fromkeys(("replace", "indent"), 2),
    **dict.fromkeys(("map", "select", "reject"), 2),
    **dict.fromkeys(("selectattr", "rejectattr"), 3),
}
"""Filters, and how many arguments they may have by place. What they may be is `_filter`'s matter."""
_MAPPED: Final = frozenset({"capitalize", "length", "lower", "string", "tojson", "trim", "upper", "title", "int"})
"""Filters that `map` may name."""
_KEYWORDS: Final = {
    "tojson": {"ensure_ascii", "indent", "separators", "sort_keys"},
    "default": {"default_value", "boolean"},
    "indent": {"width", "first", "blank"},
    "dictsort": {"case_sensitive", "by", "reverse"},
    "sort": {"reverse", "case_sensitive", "attribute"},
    "map": {"attribute", "default"},
    "join": {"attribute", "d"},
    "unique": {"attribute", "case_sensitive"},
}
TESTS: Final = frozenset(
    {
        *("boolean", "defined", "divisibleby", "eq", "equalto", "even", "false", "float", "in", "integer", "iterable"),
        *("lower", "mapping", "ne", "none", "number", "odd", "sequence", "string", "true", "undefined", "upper"),
        *("==", "!=", "<", ">", "<=", ">=", "gt", "lt", "ge", "le", "callable"),
    }
)
FUNCTIONS: Final = frozenset({"namespace", "raise_exception", "range", "strftime_now"})
METHODS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("capitalize", "copy", "isalpha", "isdigit", "items", "keys", "lower", "title", "upper"), 0),
    **dict.fromkeys(("values", "splitlines"), 0),
    **dict.fromkeys(("lstrip", "rstrip", "strip", "removeprefix", "removesuffix"), 1),
    **dict.fromkeys(("count", "endswith", "find", "index", "join", "rfind", "startswith"), 1),
    **dict.fromkeys(("get", "partition", "replace", "rpartition", "rsplit", "split"), 2),
}
"""Methods, and how many arguments they may have."""
_CLOCK: Final = re.compile(r"(?:[^%]|%[-#]?[aAbBcdHIjmMpSxXyYzZ%])*")
_CLOCK_LENGTH: Final = 100
_RAW: Final = re.compile(r"\{%[-+]?\s*raw\b")
"""jinja2 and minijinja could differ on where one ends, and one of the two would run what was not read here."""
_PLAIN_FORMAT: Final = re.compile(r"(?:[^%]|%%|%s)*")


class RefusedTemplateError(ChatTemplateError):
    """The template holds what no model's template needs; the message names it and its line."""


def check(source: str) -> nodes.Template:
    """The parsed template. Raises RefusedTemplateError, ChatTemplateError where it is malformed."""
    if len(source) > SOURCE_LIMIT:
        raise RefusedTemplateError(f"the chat template has {len(source)} characters: {SOURCE_LIMIT} are taken")
    try:
        if _RAW.search(source):
            raise RefusedTemplateError("the chat template has a raw block, which is not taken")
        tree = _ENVIRONMENT.parse(source)
        _Check().run(tree)
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"the chat template does not compile: {error}") from error
    except RecursionError as error:
        raise RefusedTemplateError("the chat template is nested too deeply") from error
    except (ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, ChatTemplateError):
            raise
        raise RefusedTemplateError(f"the chat template cannot be read: {error}") from error
    return tree


def _never() -> None:
    raise AssertionError  # nothing is rendered in this environment


_ENVIRONMENT: Final = jinja_environment(_never)  # type: ignore[arg-type]


class _Check:
    def __init__(self) -> None:
        self._nodes = 0
        self._macros: frozenset[str] = frozenset()
        self._bound: frozenset[str] = frozenset()

    def run(self, tree: nodes.Template) -> None:
        self._depth(tree)
        self._macros = frozenset(macro.name for macro in tree.find_all(nodes.Macro))
        self._bound = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx != "load")
        for node in tree.find_all(nodes.Node):
            self._node(node)
        self._node(tree)
        self._loops(tree, 0)

    def _depth(self, tree: nodes.Node) -> None:
        """Level by level: deep trees are counted, not climbed."""
        level: list[nodes.Node] = [tree]
        for _ in range(DEPTH_LIMIT):
            self._nodes += len(level)
            if self._nodes > NODES_LIMIT:
                raise RefusedTemplateError(f"the chat template has more than {NODES_LIMIT} parts")
            level = [child for node in level for child in node.iter_child_nodes()]
            if not level:
                return
        raise RefusedTemplateError(f"the chat template is nested deeper than {DEPTH_LIMIT}")

    def _loops(self, node: nodes.Node, within: int) -> None:
        for child in node.iter_child_nodes():
            inner = 0 if isinstance(child, nodes.Macro) else within + isinstance(child, nodes.For)
            if inner > LOOPS_LIMIT:
                raise _refused(child, f"more than {LOOPS_LIMIT} loops within each other")
            self._loops(child, inner)

    def _node(self, node: nodes.Node) -> None:
        name = type(node).__name__
        if name not in _NODES:
            raise _refused(node, f"{name.lower()} is not taken")
        match node:
            case nodes.Const():
                _constant(node)
            case nodes.Filter():
                _filter(node)
            case nodes.Test() if node.name not in TESTS or node.dyn_args or node.dyn_kwargs:
                raise _refused(node, f"the test {node.name} is not taken")
            case nodes.Call():
                self._call(node)
            case nodes.Getattr(attr=attr) if attr.startswith("__"):
                raise _refused(node, f"the attribute {attr[:40]} is not taken")
            case nodes.For(recursive=True):
                raise _refused(node, "recursive loops are not taken")
            case nodes.ExtensionAttribute() if node.identifier != GenerationBlocks.identifier:
                raise _refused(node, "this block is not taken")
            case nodes.Mod(left=nodes.Const(value=str())) | nodes.Mod(left=nodes.TemplateData()):
                raise _refused(node, "formats with % are not taken")

    def _call(self, node: nodes.Call) -> None:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise _refused(node, "* and ** of calls are not taken")
        match node.node:
            case nodes.Name(name=name) if name in self._macros or name == "caller":
                return
            case nodes.Name(name=name) if name in FUNCTIONS and name not in self._bound:
                _function(node, name)
            case nodes.Getattr(attr=attr) if attr in METHODS and not node.kwargs:
                if len(node.args) > METHODS[attr]:
                    raise _refused(node, f".{attr} has too many arguments")
            case nodes.ExtensionAttribute(name="_body"):
                return
            case nodes.Name(name=what) | nodes.Getattr(attr=what):
                raise _refused(node, f"the function {what[:40]} is not taken")
            case _:
                raise _refused(node, "a call of something that is computed is not taken")


def _constant(node: nodes.Const) -> None:
    value = node.value
    if isinstance(value, int | float) and not -NUMBER_LIMIT <= value <= NUMBER_LIMIT:
        raise _refused(node, f"numbers beyond {NUMBER_LIMIT} are not taken")


def _function(node: nodes.Call, name: str) -> None:
    if name == "strftime_now":
        match node.args, node.kwargs:
            case [nodes.Const(value=str(form))], [] if len(form) <= _CLOCK_LENGTH and _CLOCK.fullmatch(form):
                return
        raise _refused(node, "strftime_now is taken with one plain format")


def _filter(node: nodes.Filter) -> None:
    name = node.name
    if node.node is None or name not in FILTERS or node.dyn_args is not None or node.dyn_kwargs is not None:
        raise _refused(node, f"the filter {name[:40]} is not taken")
    if len(node.args) > max(FILTERS[name], 0) and name != "format":
        raise _refused(node, f"the filter {name} has too many arguments")
    if unknown := [str(word.key) for word in node.kwargs if str(word.key) not in _KEYWORDS.get(name, ())]:
        raise _refused(node, f"the filter {name} with {unknown[0][:40]} is not taken")
    if name in ("indent", "tojson"):
        if any(_is_computed(word.value) for word in node.kwargs):
            raise _refused(node, f"{name} is taken with constants")
        for argument in _of_size(node):
            if not isinstance(argument, nodes.Const) or not _is_width(argument.value):
                raise _refused(node, f"{name} is taken with a width of up to {INDENT_LIMIT}")
    if name == "map" and node.args and not _names(node.args[0], _MAPPED):
        raise _refused(node, "map is taken with an attribute or a plain filter")
    place = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}.get(name)
    if place is not None and len(node.args) > place and not _names(node.args[place], TESTS):
        raise _refused(node, f"{name} is taken with a plain test")
    if name == "format":
        form = node.node.value if isinstance(node.node, nodes.Const) else None
        if not isinstance(form, str) or not _PLAIN_FORMAT.fullmatch(form):
            raise _refused(node, "format is taken with %s alone")


def _is_computed(node: nodes.Expr) -> bool:
    """Whether it is neither a short constant nor a pair of them."""
    if isinstance(node, nodes.Tuple):
        return len(node.items) > 2 or any(map(_is_computed, node.items))
    return not isinstance(node, nodes.Const) or len(str(node.value)) > INDENT_LIMIT


def _of_size(node: nodes.Filter) -> Iterator[nodes.Node]:
    """Arguments that say how far something is indented or set apart."""
    place = 0 if node.name == "indent" else 1
    yield from list(node.args)[place : place + 1]
    yield from (word.value for word in node.kwargs if str(word.key) in ("indent", "width"))


def _is_width(value: object) -> bool:
    return value is None or (isinstance(value, int) and 0 <= value <= INDENT_LIMIT)


def _names(node: nodes.Expr, known: frozenset[str]) -> bool:
    return isinstance(node, nodes.Const) and node.value in known


def _refused(node: nodes.Node, what: str) -> RefusedTemplateError:
    return RefusedTemplateError(f"the chat template is refused: line {node.lineno}: {what}")
