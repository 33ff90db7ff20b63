"""The list of engines against what people read and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from warmroute.config.engines import AGENT_ENGINES, ENGINES, POOL_ENGINES, AgentEngineName, EngineEntry, EngineName

ROOT = Path(__file__).parents[3]
ALL = pytest.mark.parametrize("entry", ENGINES, ids=lambda entry: entry.name)


def test_settings_accept_just_the_engines_of_the_list() -> None:
    assert get_args(AgentEngineName) == tuple(AGENT_ENGINES)
    assert get_args(EngineName) == tuple(POOL_ENGINES)
    assert len({entry.name for entry in ENGINES}) == len(ENGINES)


@ALL
def test_its_section_is_in_the_docs(entry: EngineEntry) -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert f"\n## {entry.title}\n" in page


@ALL
def test_the_chart_takes_it_where_it_runs_it(entry: EngineEntry) -> None:
    chart = ROOT / "deploy" / "helm" / "warmroute"
    schema: dict[str, Any] = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    assert (entry.name in enums(schema["$defs"]["poolEngine"])) == entry.in_chart
    server = (chart / "templates" / "_server.tpl").read_text(encoding="utf-8")
    assert (f'"{entry.name}"' in server) == (entry.in_chart and entry.adapter is not None)


def enums(value: object) -> set[Any]:
    """All values of enumerations in a schema."""
    if isinstance(value, dict):
        found = set(value.get("enum", ()))
        return found.union(*(enums(each) for each in value.values()))
    if isinstance(value, list):
        return set[Any]().union(*(enums(each) for each in value))
    return set()
