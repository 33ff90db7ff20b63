"""Properties of a template that engines derive from its source.

vLLM passes contents as lists of parts (OpenAI's format) where the template loops over a message's content, else as
strings. It renames the role `developer` for templates that do not contain that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def content_format(tree: nodes.Template) -> ContentFormat:
    """`openai` where a loop runs over a message's content, whatever the message's variable is called."""
    try:
        return "openai" if any(_content_loops(tree)) else "string"
    except _UnexpectedTargetError:
        return "string"


def names_developer(source: str) -> bool:
    """Whether a template contains the role `developer` as a string."""
    return '"developer"' in source or "'developer'" in source


class _UnexpectedTargetError(Exception):
    """A loop or assignment unpacks its value. Then vLLM takes contents as strings."""


def _content_loops(tree: nodes.Template) -> Iterator[bool]:
    messages = {"messages", *_aliases(tree, "messages")}
    loops = list(tree.find_all(nodes.For))
    items = {_name(loop.target) for loop in loops if any(_reaches(loop.iter, name) for name in messages)}
    for loop in loops:
        if any(_reaches(loop.iter, item, "content") for item in items):
            yield True
        if isinstance(loop.iter, nodes.Name) and loop.iter.name == "content":
            yield True


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """Variables to which a variable, or a slice of it, is assigned, directly or through others."""
    found: set[str] = set()
    pending = [name]
    assignments = list(tree.find_all(nodes.Assign))
    while pending:
        source = pending.pop()
        for assignment in assignments:
            if _reaches(assignment.node, source):
                target = _name(assignment.target)
                if target not in found and target != source:
                    found.add(target)
                    pending.append(target)
    return found


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _UnexpectedTargetError
    return target.name


def _reaches(node: nodes.Node | None, variable: str, key: str | None = None) -> bool:
    """Whether an expression is the variable (or its `key`), through filters, tests and slices."""
    match node:
        case nodes.Filter() | nodes.Test():
            return _reaches(node.node, variable, key)
        case nodes.Getitem(arg=nodes.Slice()):
            return _reaches(node.node, variable, key)
        case nodes.Name() if key is None:
            return node.ctx == "load" and node.name == variable
        case nodes.Getitem(arg=nodes.Const(value=item)) if key is not None:
            return item == key and isinstance(node.node, nodes.Name) and node.node.name == variable
        case nodes.Getattr() if key is not None:
            return node.attr == key and isinstance(node.node, nodes.Name) and node.node.name == variable
        case _:
            return False
