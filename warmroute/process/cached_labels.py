"""Counters and histograms whose labelled children are found by one dictionary lookup.

prometheus_client checks, converts and locks on every `labels(...)`, which costs more than the increment does; a
request counts some ten times.

Each part declares its metrics in its own `metrics.py`, as `warmroute_<part>_<what>_<unit>`. Labels are bounded by the
deployment (pool, worker, tier, reason), never by users, prompts or unknown model names. Each class of metrics takes
the registry to declare them in, so that several parts can live in one process.
"""

from __future__ import annotations

from typing import Any, Self

import prometheus_client

CACHED_CHILDREN = 8192
"""Most children found that way a metric; the series themselves are bounded by their labels."""


class _CachedLabels:
    """Before a metric class in the order of bases."""

    _found: dict[tuple[Any, ...], Self] | None = None

    def labels(self, *values: Any, **named: Any) -> Self:
        """As prometheus_client's; positional values are the fast way."""
        found = self._found
        if found is None:
            found = self._found = {}
        child = found.get(values) if not named else None
        if child is None:
            child = super().labels(*values, **named)  # type: ignore[misc]
            if not named and len(found) < CACHED_CHILDREN:
                found[values] = child
        return child  # type: ignore[no-any-return]

    def remove(self, *values: Any) -> None:
        self._found = None
        super().remove(*values)  # type: ignore[misc]

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        self._found = None
        super().remove_by_labels(labels)  # type: ignore[misc]

    def clear(self) -> None:
        self._found = None
        super().clear()  # type: ignore[misc]


class Counter(_CachedLabels, prometheus_client.Counter):
    """See the module."""


class Histogram(_CachedLabels, prometheus_client.Histogram):
    """See the module."""
