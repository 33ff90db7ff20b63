"""Whether a template's renderings are cheap whatever a chat holds: a bound that is worked out from the template alone.

The template is gone through once, with sizes in place of values. A size is a sum of terms `c n^i s^j |e|`: `s` the
chat's bytes, `n` its messages and tools, `e` an element of a loop that is run through just now. What is written or
copied within a loop adds up, over its rounds, to the whole that it runs through, where it is of that loop's element;
anything else is multiplied by the rounds. Macros are gone through where they are called. Whatever this does not follow,
such as macros that call themselves and texts that grow in a loop by more than elements, is not called cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from jinja2 import nodes

CHAT_BYTES: Final = 3 * 65_536
"""Of the largest chat that the event loop renders, whose reasoning stands under three names; and its messages, tools,
parts and calls."""
CHAT_PIECES: Final = 200
MOST_BYTES: Final = 268_435_456
"""Written and copied by a rendering of such a chat, at most."""
VISITS: Final = 60_000
PASSES: Final = 4
NUMBER: Final = 24
"""Characters of what is neither text nor list."""
DIGITS: Final = 4_400
"""More than Python writes of a number."""
ELEMENT: Final = 8
GROWN: Final = 1.5
"""What a text grows by at most that is made upper case: `ß`, and bytes."""
RANGE: Final = 100_000
"""What `range` gives at most."""
_DEGREE: Final = 3
_LOOP_NUMBERS: Final = frozenset(
    {"depth", "depth0", "first", "index", "index0", "last", "length", "revindex", "revindex0"}
)
_TEXTS: Final = frozenset({"capitalize", "lower", "string", "title", "trim", "upper", "safe", "e", "escape"})
_PARTS: Final = frozenset(
    {"dictsort", "first", "items", "last", "list", "reverse", "sort", "unique", "map", "select", "reject"}
) | {"selectattr", "rejectattr"}
_SMALL_FILTERS: Final = frozenset({"length", "count", "int", "float"})
_TEXT_METHODS: Final = frozenset(
    {"capitalize", "lower", "lstrip", "removeprefix", "removesuffix", "rstrip", "strip", "title", "upper"}
)
_PART_METHODS: Final = _TEXT_METHODS | {
    *("copy", "items", "keys", "partition", "rpartition", "rsplit", "split", "splitlines", "values"),
}
_SMALL_METHODS: Final = frozenset({"count", "endswith", "find", "index", "isalpha", "isdigit", "rfind", "startswith"})

Key = tuple[int, int, int]
"""Loop (0: none), power of `n`, power of `s`."""
Size = dict[Key, float]
_WHOLE: Final[Size] = {(0, 0, 1): 1.0}


class _UnboundedError(Exception):
    """It is not known to be cheap; the message says why."""


def is_cheap(tree: nodes.Template, special_tokens: Mapping[str, str]) -> bool:
    """Whether a chat of the event loop's size costs `MOST_BYTES` at most."""
    return why_dear(tree, special_tokens) is None


def why_dear(tree: nodes.Template, special_tokens: Mapping[str, str]) -> str | None:
    """Why a template is not called cheap; None where it is."""
    try:
        total = _Walk(special_tokens).run(tree)
    except _UnboundedError as error:
        return str(error)
    except RecursionError:
        return "it is nested too deeply"
    worst = sum(factor * CHAT_PIECES**i * CHAT_BYTES**j for (_, i, j), factor in total.items())
    return None if worst <= MOST_BYTES else f"it may write {worst:.3g} bytes"


@dataclass(slots=True)
class _Value:
    size: Size
    pieces: bool = False
    """Whether it has no more elements than the chat has messages and tools, or is no larger a number."""
    number: bool = False
    text: bool = False
    spaces: tuple[dict[str, _Value], ...] = ()
    """The namespaces that it may be."""


@dataclass(slots=True)
class _Tally:
    """What is copied, and what is written, by the statements gone through."""

    work: Size = field(default_factory=dict)
    text: Size = field(default_factory=dict)


def _small(*, pieces: bool = False) -> _Value:
    return _Value({(0, 0, 0): float(NUMBER)}, pieces, number=True, text=True)


def _text(size: Size) -> _Value:
    return _Value(size, text=True)


def _add(one: Size, other: Size, factor: float = 1.0) -> Size:
    total = dict(one)
    for key, value in other.items():
        total[key] = total.get(key, 0.0) + factor * value
    return total


def _most(one: Size, other: Size) -> Size:
    return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in one.keys() | other.keys()}


def _join(one: _Value | None, other: _Value) -> _Value:
    if one is None:
        return other
    spaces = one.spaces + tuple(each for each in other.spaces if all(each is not known for known in one.spaces))
    return _Value(
        _most(one.size, other.size),
        one.pieces and other.pieces,
        one.number and other.number,
        one.text and other.text,
        spaces,
    )


def _times(one: Size, other: Size) -> Size:
    """A product. Of two elements one counts as the whole chat."""
    total: Size = {}
    for (loop, i, j), factor in one.items():
        for (other_loop, other_i, other_j), other_factor in other.items():
            both = bool(loop and other_loop)
            key = (max(loop, other_loop), i + other_i, j + other_j + both)
            if key[1] + key[2] > _DEGREE:
                raise _UnboundedError("its work grows with a high power of the chat")
            total[key] = total.get(key, 0.0) + factor * other_factor
    return total


class _Walk:
    def __init__(self, special_tokens: Mapping[str, str]) -> None:
        self._tokens = special_tokens
        self._scopes: list[dict[str, _Value]] = [{}]
        self._macros: dict[str, nodes.Macro] = {}
        self._running: list[str] = []
        self._made: dict[int, dict[str, _Value]] = {}
        self._tally = _Tally()
        self._loops = 0
        self._branching = 0
        self._visits = 0

    def run(self, tree: nodes.Template) -> Size:
        for macro in tree.find_all(nodes.Macro):
            if macro.name in self._macros:
                raise _UnboundedError("two macros have one name")
            self._macros[macro.name] = macro
        self._body(tree.body)
        return _add(self._tally.work, self._tally.text)

    # --- statements --------------------------------------------------------------------------------------------------

    def _body(self, body: Iterable[nodes.Node]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: nodes.Node) -> None:  # noqa: C901  a case for each kind
        self._visits += 1
        if self._visits > VISITS:
            raise _UnboundedError("it takes too long to go through")
        match node:
            case nodes.Output():
                for each in node.nodes:
                    if isinstance(each, nodes.TemplateData):
                        self._write(_text({(0, 0, 0): float(len(each.data))}))
                    else:
                        self._write(self._value(each))
            case nodes.If():
                self._value(node.test)
                branches = [node.body, node.else_]
                for other in node.elif_:
                    self._value(other.test)
                    branches.append(other.body)
                self._branches(branches)
            case nodes.For():
                self._for(node)
            case nodes.Assign():
                self._assign(node.target, self._value(node.node))
            case nodes.AssignBlock():
                size = self._text(node.body)
                self._assign(node.target, _text(size if node.filter is None else _add(size, size, 15.0)))
            case nodes.CallBlock(call=nodes.Call(node=nodes.ExtensionAttribute())):
                self._write(_text(self._text(node.body)))
            case nodes.ExprStmt():
                self._value(node.node)
            case nodes.Macro():
                if len(self._scopes) > 1:
                    raise _UnboundedError("a macro is defined within a loop or a macro")
            case nodes.Break() | nodes.Continue():
                return
            case _:
                raise _UnboundedError(f"it has a {type(node).__name__.lower()}")

    def _branches(self, branches: Sequence[Sequence[nodes.Node]]) -> None:
        """Of which one is taken."""
        before, most = self._tally, _Tally()
        self._branching += 1
        for body in branches:
            self._tally = _Tally()
            self._body(body)
            most = _Tally(_most(most.work, self._tally.work), _most(most.text, self._tally.text))
        self._branching -= 1
        self._tally = _Tally(_add(before.work, most.work), _add(before.text, most.text))

    def _text(self, body: Sequence[nodes.Node]) -> Size:
        """What statements write, where that is kept."""
        before, self._tally = self._tally, _Tally()
        branching, self._branching = self._branching, 0
        self._scopes.append({})
        self._body(body)
        self._scopes.pop()
        self._branching = branching
        inner, self._tally = self._tally, before
        self._copy(_add(inner.work, inner.text))
        return inner.text

    def _for(self, node: nodes.For) -> None:
        over = self._value(node.iter)
        self._loops += 1
        loop = self._loops
        rounds: Size = {(0, 1, 0): 1.0} if over.pieces else _add({(0, 0, 0): 1.0}, over.size)
        if isinstance(node.iter, nodes.List | nodes.Tuple):
            rounds = {(0, 0, 0): float(len(node.iter.items))}
        element = _Value({(loop, 0, 0): 1.0, (0, 0, 0): float(ELEMENT)})

        def after(size: Size) -> Size:
            """What comes together over all rounds."""
            total: Size = {}
            for (one, i, j), factor in size.items():
                whole = over.size if one == loop else rounds
                total = _add(total, _times({(0 if one == loop else one, i, j): factor}, whole))
            return total

        def one_of(size: Size) -> Size:
            """What is left of one round."""
            total: Size = {}
            for (one, i, j), factor in size.items():
                part = over.size if one == loop else {(0, 0, 0): 1.0}
                total = _add(total, _times({(0 if one == loop else one, i, j): factor}, part))
            return total

        before, branching = self._tally, self._branching
        self._branching = 0
        for _ in range(PASSES):
            kept = self._snapshot()
            self._tally = _Tally()
            self._scopes.append({"loop": _small(pieces=over.pieces)})
            self._assign(node.target, element)
            if node.test is not None:
                self._value(node.test)
            self._body(node.body)
            self._scopes.pop()
            if self._settled(kept, one_of):
                break
        else:
            raise _UnboundedError("a text grows in a loop")
        self._branching = branching
        inner, self._tally = self._tally, before
        self._tally.work = _add(self._tally.work, after(_add(inner.work, {(0, 0, 0): float(ELEMENT)})))
        self._tally.text = _add(self._tally.text, after(inner.text))
        if node.else_:
            self._body(node.else_)

    def _snapshot(self) -> dict[tuple[int, str], Size]:
        return {(place, name): dict(value.size) for place, space in self._made.items() for name, value in space.items()}

    def _settled(self, kept: Mapping[tuple[int, str], Size], one_of: Callable[[Size], Size]) -> bool:
        """Whether a round leaves no more in namespaces than was there before it."""
        settled = True
        for place, space in self._made.items():
            for name, value in space.items():
                was = kept.get((place, name), {})
                kept_size = one_of(value.size)
                if any(kept_size.get(key, 0.0) > was.get(key, 0.0) + 1e-6 for key in kept_size):
                    settled = False
                value.size = kept_size
        return settled

    def _assign(self, target: nodes.Node, value: _Value) -> None:
        match target:
            case nodes.Name():
                # In a branch that is not taken it stays what it was.
                was = self._known(target.name) if self._branching else None
                self._scopes[-1][target.name] = _join(was, value)
            case nodes.NSRef():
                space = self._known(target.name)
                for each in () if space is None else space.spaces:
                    if value.spaces:
                        raise _UnboundedError("a namespace holds a namespace")
                    each[target.attr] = _join(
                        each.get(target.attr), _Value(dict(value.size), value.pieces, value.number)
                    )
            case nodes.Tuple():
                for part in target.items:
                    self._assign(part, _Value(value.size))
            case _:
                raise _UnboundedError("something else is assigned to")

    def _known(self, name: str) -> _Value | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    # --- expressions -------------------------------------------------------------------------------------------------

    def _value(self, node: nodes.Node | None) -> _Value:  # noqa: C901  a case for each kind
        self._visits += 1
        if self._visits > VISITS:
            raise _UnboundedError("it takes too long to go through")
        match node:
            case None:
                return _small()
            case nodes.Const(value=str(text)):
                return _text({(0, 0, 0): float(len(text))})
            case nodes.Const():
                return _small()
            case nodes.Name(name="loop" | "varargs" | "kwargs" | "caller"):
                raise _UnboundedError(f"it looks at {node.name} as a whole")
            case nodes.Name(name=name):
                return self._named(name)
            case nodes.Getattr(node=nodes.Name(name="loop"), attr=attr):
                return _small() if attr in _LOOP_NUMBERS else _Value(_WHOLE)
            case nodes.Getattr(node=inner, attr=attr):
                return self._part(self._value(inner), attr)
            case nodes.Getitem(node=inner, arg=nodes.Slice() as part):
                for bound in (part.start, part.stop, part.step):
                    self._value(bound)
                value = self._value(inner)
                return self._copied(_Value(value.size, value.pieces))
            case nodes.Getitem(node=inner, arg=arg):
                self._value(arg)
                return self._part(self._value(inner), None)
            case nodes.Filter():
                return self._filter(node)
            case nodes.Call():
                return self._call(node)
            case nodes.CondExpr():
                self._value(node.test)
                return _join(self._value(node.expr1), self._value(node.expr2))
            case nodes.And() | nodes.Or():
                return _join(self._value(node.left), self._value(node.right))
            case nodes.Test() | nodes.Compare() | nodes.Not() | nodes.Neg() | nodes.Pos():
                for child in node.iter_child_nodes():
                    self._value(child.expr if isinstance(child, nodes.Operand) else child)
                return _small()
            case nodes.Sub() | nodes.Mod() | nodes.Div() | nodes.FloorDiv():
                if self._value(node.left).number and self._value(node.right).number:
                    return _small()
                return _Value({(0, 0, 0): float(DIGITS)})
            case nodes.Add():
                if self._value(node.left).number and self._value(node.right).number:
                    return _small()
                return self._sum([node.left, node.right])
            case nodes.Concat():
                return self._sum(node.nodes)
            case nodes.List() | nodes.Tuple():
                value = self._sum(node.items)
                return _Value(value.size)
            case nodes.Dict():
                return _Value(self._sum([each for pair in node.items for each in (pair.key, pair.value)]).size)
            case nodes.Keyword():
                return self._value(node.value)
        raise _UnboundedError(f"it has a {type(node).__name__.lower()}")

    def _named(self, name: str) -> _Value:
        if (known := self._known(name)) is not None:
            return known
        if name in self._tokens:
            return _Value({(0, 0, 0): float(len(self._tokens[name]))})
        return _Value(_WHOLE, pieces=name in ("messages", "tools"))

    @staticmethod
    def _part(value: _Value, attr: str | None) -> _Value:
        if not value.spaces:
            return _Value(value.size)
        found: _Value | None = None
        for space in value.spaces:
            for name, each in space.items():
                if attr is None or attr == name:
                    found = _join(found, each)
        return found or _Value({})

    def _sum(self, parts: Sequence[nodes.Expr]) -> _Value:
        """Texts or lists put together; numbers too, whose sums grow by a digit at most."""
        values = [self._value(part) for part in parts]
        if any(value.spaces for value in values):
            raise _UnboundedError("a list holds a namespace")
        total: Size = {(0, 0, 0): float(ELEMENT)}
        for value in values:
            total = _add(total, value.size)
        return self._copied(_Value(total, text=any(value.text and not value.number for value in values)))

    def _filter(self, node: nodes.Filter) -> _Value:
        value = self._value(node.node)
        given = [self._value(each) for each in (*node.args, *(word.value for word in node.kwargs))]
        size = value.size
        match node.name:
            case name if name in _SMALL_FILTERS:
                return _small(pieces=value.pieces)
            case "default" | "d":
                for each in given:
                    value = _join(value, each)
                return value
            case "tojson":
                return self._copied(_text(_add(size, size, 15.0 if given else 5.0)))
            case "replace":
                return self._replaced(value, [*node.args])
            case "join" | "format":
                sep = given[0].size if given else {}
                if any(key != (0, 0, 0) for key in sep):
                    raise _UnboundedError("a text joins others that is no constant")
                return self._copied(_text(_add(size, size, sum(sep.values()))))
            case "indent":
                return self._copied(_text(_add(size, size, 16.0)))
            case "first" | "last":
                return _Value(size)
            case name if name in _PARTS:
                return self._copied(_Value(_add(size, size, 5.0 if name == "map" else 0.0), value.pieces))
            case name if name in _TEXTS:
                return self._copied(_text(_add({}, size, (1.0 if value.text else 5.0) * GROWN)))
        raise _UnboundedError(f"it has the filter {node.name}")

    def _replaced(self, value: _Value, args: Sequence[nodes.Expr]) -> _Value:
        match args:
            case [nodes.Const(value=str(old)), nodes.Const(value=str(new)), *_]:
                grown = max(len(new) / len(old), 1.0) if old else 1.0 + len(new)
                return self._copied(_text(_add(value.size, value.size, grown)))
        raise _UnboundedError("a text is replaced that is no constant")

    def _call(self, node: nodes.Call) -> _Value:
        match node.node:
            case nodes.Name(name="namespace"):
                space = self._made.setdefault(id(node), {})
                for word in node.kwargs:
                    value = self._value(word.value)
                    if value.spaces:
                        raise _UnboundedError("a namespace holds a namespace")
                    key = str(word.key)
                    space[key] = _join(space.get(key), _Value(dict(value.size), value.pieces, value.number, value.text))
                if node.args:
                    raise _UnboundedError("a namespace is made of something")
                return _Value({}, spaces=(space,))
            case nodes.Name(name="range"):
                pieces = all(self._value(arg).pieces or self._is_short(arg) for arg in node.args)
                return _Value(_add(_WHOLE, {(0, 0, 0): float(RANGE)}), pieces)
            case nodes.Name(name=name) if name in self._macros:
                return self._macro(self._macros[name], node)
            case nodes.Name():
                for each in node.args:
                    self._value(each)
                return _Value({(0, 0, 0): 200.0})
            case nodes.Getattr(node=inner, attr=attr):
                return self._method(self._value(inner), attr, node.args)
        raise _UnboundedError("it calls something")

    def _method(self, value: _Value, attr: str, args: Sequence[nodes.Expr]) -> _Value:
        given = [self._value(each) for each in args]
        if attr == "get":
            part = self._part(value, None)
            for each in given[1:]:
                part = _join(part, each)
            return part
        if attr == "replace":
            return self._replaced(value, args)
        if attr in _SMALL_METHODS:
            return _small()
        if attr in _PART_METHODS:
            return self._copied(_Value(_add({}, value.size, GROWN), text=attr in _TEXT_METHODS))
        raise _UnboundedError(f"it calls .{attr}")

    def _macro(self, macro: nodes.Macro, call: nodes.Call) -> _Value:
        if macro.name in self._running:
            raise _UnboundedError(f"the macro {macro.name} calls itself")
        scope: dict[str, _Value] = {}
        names = [arg.name for arg in macro.args]
        for name, default in zip(reversed(names), reversed(macro.defaults), strict=False):
            scope[name] = self._value(default)
        for name, arg in zip(names, call.args, strict=False):
            scope[name] = self._value(arg)
        for word in call.kwargs:
            scope[str(word.key)] = self._value(word.value)
        for name in names:
            scope.setdefault(name, _small())
        outer, self._scopes = self._scopes, [self._scopes[0], scope]
        self._running.append(macro.name)
        size = self._text(macro.body)
        self._running.pop()
        self._scopes = outer
        return _text(size)

    def _is_short(self, node: nodes.Expr) -> bool:
        """A small number, or the index of a loop over messages or tools, with one added or taken away."""
        match node:
            case nodes.Const(value=int(number)):
                return number <= CHAT_PIECES
            case nodes.Neg(node=nodes.Const()):
                return True
            case nodes.Getattr(node=nodes.Name(name="loop"), attr="index" | "index0" | "length"):
                loop = self._known("loop")
                return loop is not None and loop.pieces
            case nodes.Add(left=left, right=nodes.Const(value=1)) | nodes.Sub(left=left, right=nodes.Const(value=1)):
                return self._is_short(left)
        return False

    # --- what it comes to --------------------------------------------------------------------------------------------

    def _write(self, value: _Value) -> None:
        # As text an object has quotes and escapes, and some numbers are longer.
        self._tally.text = _add(self._tally.text, value.size, 1.0 if value.text else 5.0)

    def _copy(self, size: Size) -> None:
        self._tally.work = _add(self._tally.work, size)

    def _copied(self, value: _Value) -> _Value:
        self._copy(value.size)
        return value
