"""What every dialect must keep, and that none is forgotten."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import orjson
import pytest

from gateway.engines.base import HINTS, UNKNOWN, Dialect
from gateway.engines.registry import DIALECTS, dialect, steering_fields, unsalted_paths
from gateway.requests.paths import POST_ROUTES
from gateway.requests.request_edits import RequestEdits
from warmroute.config.engines import ENGINES, POOL_ENGINES

FOLDER = Path(__file__).parents[3] / "gateway" / "engines"
ALL = pytest.mark.parametrize("name", [*POOL_ENGINES, "unknown"])


def of(name: str) -> Dialect:
    return UNKNOWN if name == "unknown" else DIALECTS[name]


def test_every_file_is_an_engine_of_the_list_and_every_engine_has_its_file() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "base", "registry"}
    assert files == set(POOL_ENGINES.values())
    assert set(DIALECTS) == {entry.name for entry in ENGINES if entry.dialect is not None}
    for name, module in POOL_ENGINES.items():
        assert import_module(f"gateway.engines.{module}").DIALECT is DIALECTS[name]
        assert dialect(name) is dialect(name.upper()) is DIALECTS[name]


@ALL
def test_it_speaks_of_fields_and_paths_that_there_are(name: str) -> None:
    engine = of(name)
    assert engine.rejects <= HINTS
    assert engine.unsalted <= {path for path, route in POST_ROUTES.items() if route.salted}
    assert not (engine.takes_priority and "priority" in engine.rejects)
    assert engine.takes_priority or not engine.lower_priority_first


@ALL
def test_a_body_without_hints_stays_as_it_is(name: str) -> None:
    body = b'{"model": "m",  "messages": []}'
    assert RequestEdits().apply(body, orjson.loads(body), of(name)) is body


@ALL
@pytest.mark.parametrize("priority", [-7, 0, 7])
def test_a_priority_reaches_an_engine_that_takes_it_in_its_own_direction(name: str, priority: int) -> None:
    engine = of(name)
    body = b'{"model":"m"}'
    edited = orjson.loads(RequestEdits(priority=priority).apply(body, orjson.loads(body), engine))
    sign = -1 if engine.lower_priority_first else 1
    assert edited.get("priority", 0) == (sign * priority if engine.takes_priority else 0)


@ALL
def test_what_it_rejects_is_taken_out_and_nothing_else(name: str) -> None:
    fields = {"model": "m", **dict.fromkeys(sorted(HINTS - {"priority"}), "x"), "seed": 1}
    edited = orjson.loads(RequestEdits().apply(orjson.dumps(fields), fields, of(name)))
    assert edited == {field: value for field, value in fields.items() if field not in of(name).rejects}


@ALL
def test_a_salt_takes_the_place_of_the_clients(name: str) -> None:
    fields = {"model": "m", "cache_salt": "theirs"}
    edited = orjson.loads(RequestEdits(salt="ours").apply(orjson.dumps(fields), fields, of(name)))
    assert edited["cache_salt"] == "ours"


def test_a_pool_of_several_engines_is_as_open_as_the_least_of_them() -> None:
    assert unsalted_paths(frozenset(DIALECTS)) == frozenset().union(*(each.unsalted for each in DIALECTS.values()))
    assert unsalted_paths(frozenset()) == UNKNOWN.unsalted == unsalted_paths(frozenset({"never heard of"}))


def test_fields_that_steer_any_engine_of_a_pool_are_known_and_hints_are_none() -> None:
    every = frozenset().union(*(each.steers for each in DIALECTS.values()))
    assert steering_fields(frozenset(DIALECTS)) == every
    assert steering_fields(frozenset()) == steering_fields(frozenset({"vllm", "never heard of"})) == every
    assert steering_fields(frozenset({"VLLM"})) == DIALECTS["vllm"].steers
    assert "rid" not in steering_fields(frozenset({"sglang"}), frozenset({"rid"}))
    assert not every & HINTS


@ALL
def test_a_field_is_taken_out_however_it_is_written(name: str) -> None:
    body = b'{"model":"m","kv_transfer_par\\u0061ms":{"a":[1]}, "n":1,"kv_transfer_params":2,"messages":[]}'
    edited = RequestEdits(remove=frozenset({"kv_transfer_params"})).apply(body, orjson.loads(body), of(name))
    assert orjson.loads(edited) == {"model": "m", "n": 1, "messages": []}
    assert b"kv_transfer" not in edited
