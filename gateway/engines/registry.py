"""The dialects by the engines' names, as Hello and configuration have them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Final

from gateway.engines.base import UNKNOWN, Dialect
from warmroute.config.engines import POOL_ENGINES


def _load(module: str) -> Dialect:
    found: Dialect = import_module(f"gateway.engines.{module}").DIALECT
    return found


DIALECTS: Final[Mapping[str, Dialect]] = {name: _load(module) for name, module in POOL_ENGINES.items()}


def dialect(engine: str | None) -> Dialect:
    """The dialect of the engine with this name, `UNKNOWN` where none is known."""
    return UNKNOWN if engine is None else DIALECTS.get(engine.lower(), UNKNOWN)


@lru_cache(maxsize=64)
def steering_fields(engines: frozenset[str], allowed: frozenset[str] = frozenset()) -> frozenset[str]:
    """Fields that steer one of a pool's engines, less those that are allowed; none or an unknown one named: any's."""
    known = [DIALECTS.get(engine.lower()) for engine in engines]
    found = [each for each in known if each is not None]
    each_of = found if found and len(found) == len(known) else DIALECTS.values()
    return frozenset().union(*(each.steers for each in each_of)) - allowed


@lru_cache(maxsize=64)
def unsalted_paths(engines: frozenset[str]) -> frozenset[str]:
    """Paths on which at least one of a pool's engines would mix what is to be kept apart; none named: see `UNKNOWN`."""
    return frozenset().union(*(dialect(engine).unsalted for engine in engines)) if engines else UNKNOWN.unsalted
