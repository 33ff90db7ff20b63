"""The classes that declare metrics, found by the files that they are in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.process.metrics import GatewayMetrics

ROOT = Path(__file__).parent.parent


def metric_owners() -> list[type]:
    """Every class of a part's `metrics.py` that takes a registry alone, but GatewayMetrics, which is made of others."""
    found = []
    for part in ("gateway", "indexer", "worker", "warmroute"):
        for path in sorted((ROOT / part).rglob("metrics.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found += [value for value in vars(import_module(name)).values() if _declares(value, name)]
    return found


def _declares(value: Any, module: str) -> bool:
    if not inspect.isclass(value) or value.__module__ != module or value is GatewayMetrics:
        return False
    return list(inspect.signature(value).parameters) == ["registry"]


def series(owner: Callable[[CollectorRegistry], Any]) -> set[str]:
    """The names of all metrics that it declares."""
    return {collector._name for collector in vars(owner(CollectorRegistry())).values()}
