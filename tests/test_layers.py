"""No circle of modules, nor of packages beside each other, by any import: of functions and of type checkers too."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

Graph = dict[str, set[str]]

ROOT = Path(__file__).parents[1]
PARTS = ("warmroute", "indexer", "worker", "gateway")


def modules(root: Path) -> dict[str, Path]:
    """Every module of the product by its name; a package is its `__init__`."""
    found = {}
    for part in PARTS:
        for path in (root / part).rglob("*.py"):
            names = path.relative_to(root).with_suffix("").parts
            found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


def imports(root: Path) -> Graph:
    """Which modules of the product each module imports anywhere in its text."""
    known = modules(root)
    graph: Graph = {}
    for name, path in known.items():
        graph[name] = targets = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names if alias.name in known)
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                targets.update(inner & known.keys() or {node.module})
        targets.discard(name)
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = [stack.pop()]
            while component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def siblings(graph: Graph) -> dict[str, Graph]:
    """By package: which of its children (modules or packages) import which others, from any depth."""
    levels: dict[str, Graph] = defaultdict(lambda: defaultdict(set))
    for source, targets in graph.items():
        for target in targets:
            left, right = source.split("."), target.split(".")
            depth = 0
            while depth < min(len(left), len(right)) and left[depth] == right[depth]:
                depth += 1
            if depth < len(left) and depth < len(right):
                level = levels[".".join(left[:depth])]
                level[left[depth]].add(right[depth])
                level[right[depth]] |= set()
    return levels


def test_no_circle_of_modules() -> None:
    assert circles(imports(ROOT)) == []


def test_no_circle_of_packages() -> None:
    # The command line lies in `warmroute` and is a part of its own, above all others.
    top = re.compile(r"^warmroute\.(cli|__main__)")
    graph = {
        top.sub(r"\1", source): {top.sub(r"\1", target) for target in targets}
        for source, targets in imports(ROOT).items()
    }
    found = {package: circles(level) for package, level in siblings(graph).items()}
    assert {package: circle for package, circle in found.items() if circle} == {}


def test_circles_are_found() -> None:
    graph: Graph = {
        "a.b.x": {"a.c.y"},
        "a.c.z": {"a.b.w"},
        "a.c.y": set(),
        "a.b.w": set(),
        "a.d": {"a.d.e"},
        "a.d.e": set(),
    }
    assert circles(graph) == []
    assert circles(siblings(graph)["a"]) == [["b", "c"]]
    assert circles(graph | {"a.c.y": {"a.b.x"}}) == [["a.b.x", "a.c.y"]]
