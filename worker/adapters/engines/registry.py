"""The engines that an agent can stand beside, by name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from warmroute.config.engines import AGENT_ENGINES
from worker.adapters.engine_metrics import MetricNames
from worker.adapters.engines.base import Engine


@cache
def engine_named(name: str) -> Engine:
    """The engine with this name in settings. Raises KeyError where there is none."""
    engine: Engine = import_module(f"worker.adapters.engines.{AGENT_ENGINES[name]}").ENGINE
    return engine


@cache
def known_metrics() -> MetricNames:
    """Names of all engines' metrics: an engine may export them under another's names, as the built-in one does."""
    return MetricNames.union(engine_named(name).metrics for name in AGENT_ENGINES)
