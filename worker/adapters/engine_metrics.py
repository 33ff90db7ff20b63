"""An engine's load and facts from its Prometheus metrics, under the names that `MetricNames` has. No I/O.

What an engine does not export stays neutral (0, or None for facts) and is said once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain, islice
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from worker.adapters.numbers import count
from worker.events import EngineLoad

logger = logging.getLogger(__name__)

_START: Final = "process_start_time_seconds"
# Of the mean of uncached tokens a request: older ones count half as much after so many newer ones.
_MEAN_REQUESTS: Final = 256
_MOST_RANKS: Final = 1024
# 256 ranks with some dozen each; what is more would hold up the loop that reads events.
_MOST_LINES: Final = 8192


@dataclass(slots=True)
class EngineFacts:
    """What the metrics say of one rank beside its load; None where they say nothing.

    `most_blocks` bounds the blocks of one group of layers, which in hybrid models can be more than `cache_tokens` hold.
    """

    block_tokens: int | None = None
    cache_tokens: int | None = None
    most_blocks: int | None = None
    prefix_caching: bool | None = None


LabelReader = Callable[[EngineFacts, Mapping[str, str]], None]
"""Writes what a metric's labels say into the facts of its rank. Never raises."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Under which names an engine exports its metrics, the newest name first; empty: not at all."""

    running: tuple[str, ...] = ()
    """Requests that are computed."""
    waiting: tuple[str, ...] = ()
    """Requests that wait."""
    usage: tuple[str, ...] = ()
    """Share of the KV cache in use, 0 to 1."""
    computed: tuple[str, ...] = ()
    """Prompt tokens computed so far, without those from the cache."""
    computed_requests: tuple[str, ...] = ()
    """Requests that they were computed for."""
    prompt: tuple[str, ...] = ()
    """Prompt tokens so far; with `cached` and `finished` used where `computed` is missing."""
    cached: tuple[str, ...] = ()
    """Prompt tokens from the cache so far."""
    finished: tuple[str, ...] = ()
    """Requests answered so far."""
    capacity: tuple[str, ...] = ()
    """Tokens that the cache holds."""
    block: tuple[str, ...] = ()
    """Tokens in a KV block."""
    labelled: Mapping[str, LabelReader] = field(default_factory=dict)
    """Metrics whose labels are facts."""
    rank_labels: tuple[str, ...] = ()
    """Labels with the number of the data-parallel rank; without one a metric is rank 0's."""

    @classmethod
    def union(cls, several: Iterable[MetricNames]) -> MetricNames:
        """All names of several engines; those of the first win where an engine exports both."""
        names = tuple(several)
        labelled = {name: read for each in names for name, read in each.labelled.items()}
        return cls(
            **{
                each.name: tuple(chain.from_iterable(getattr(one, each.name) for one in names))
                for each in fields(cls)
                if each.name != "labelled"
            },
            labelled=labelled,
        )

    @property
    def all(self) -> tuple[str, ...]:
        """Every name of a metric, without labels."""
        tuples = (getattr(self, each.name) for each in fields(self) if each.name not in {"labelled", "rank_labels"})
        return (*chain.from_iterable(tuples), *self.labelled)


@dataclass(slots=True)
class Scrape:
    """One reading. `started_at`: the engine's process, in seconds since 1970; None where it is not said."""

    loads: dict[int, EngineLoad] = field(default_factory=dict)
    facts: dict[int, EngineFacts] = field(default_factory=dict)
    started_at: float | None = None


@dataclass(slots=True)
class _Uncached:
    """Mean of tokens that a request's prompt has beyond the cache, from counters that only grow."""

    tokens: float = 0.0
    requests: float = 0.0
    last: tuple[float, float] | None = None

    def update(self, tokens: float, requests: float) -> None:
        before = self.last if self.last is not None and self.last[1] <= requests else (0.0, 0.0)
        self.last = (tokens, requests)
        new = requests - before[1]
        if new <= 0:
            return
        kept = 0.5 ** (new / _MEAN_REQUESTS)
        self.tokens = self.tokens * kept + max(0.0, tokens - before[0])
        self.requests = self.requests * kept + new

    @property
    def mean(self) -> float:
        return self.tokens / self.requests if self.requests else 0.0


class MetricsReader:
    """Reads one engine's metrics text again and again. Bounded by its ranks."""

    def __init__(self, names: MetricNames, *, quiet: bool = False) -> None:
        """`quiet`: another reader says what is missing."""
        self._names = names
        self._wanted = (*names.all, _START)
        self._quiet = quiet
        self._uncached: dict[int, _Uncached] = {}
        self._said: set[str] = set()

    def read(self, text: str) -> Scrape:
        """Never raises: what cannot be read is missing."""
        names = self._names
        samples: dict[str, dict[int, float]] = {}
        scrape = Scrape()
        for sample in self._samples(text):
            rank = _rank(sample.labels, names.rank_labels)
            if not math.isfinite(sample.value) or rank >= _MOST_RANKS:
                continue
            if sample.name == _START:
                scrape.started_at = sample.value
            elif (read_labels := names.labelled.get(sample.name)) is not None:
                read_labels(scrape.facts.setdefault(rank, EngineFacts()), sample.labels)
            else:
                by_rank = samples.setdefault(sample.name, {})
                by_rank[rank] = by_rank.get(rank, 0.0) + sample.value
        for rank in {rank for by_rank in samples.values() for rank in by_rank}:
            self._read_rank(rank, partial(_first, samples, rank), scrape)
        for rank, block in _all(samples, names.block):
            scrape.facts.setdefault(rank, EngineFacts()).block_tokens = count(block) or None
        for rank, tokens in _all(samples, names.capacity):
            scrape.facts.setdefault(rank, EngineFacts()).cache_tokens = count(tokens) or None
        needed = (("running requests", names.running), ("waiting requests", names.waiting), ("cache use", names.usage))
        for what, any_of in needed:
            if not any(name in samples for name in any_of):
                self._say_once(what, any_of)
        return scrape

    def _read_rank(self, rank: int, get: Callable[[tuple[str, ...]], float | None], scrape: Scrape) -> None:
        names = self._names
        running, waiting, usage = get(names.running), get(names.waiting), get(names.usage)
        if running is None and waiting is None and usage is None:
            return
        uncached = self._uncached.setdefault(rank, _Uncached())
        computed, requests = get(names.computed), get(names.computed_requests)
        if computed is None or requests is None:
            prompt, requests = get(names.prompt), get(names.finished)
            computed = None if prompt is None else prompt - (get(names.cached) or 0.0)
        if computed is not None and requests is not None:
            uncached.update(computed, requests)
        waiting_requests = count(waiting)
        scrape.loads[rank] = EngineLoad(
            running_requests=count(running),
            waiting_requests=waiting_requests,
            waiting_tokens=count(waiting_requests * uncached.mean),
            kv_cache_usage=min(1.0, max(0.0, usage or 0.0)),
        )

    def _samples(self, text: str) -> Iterator[Sample]:
        """Samples of wanted names alone: parsing all of an engine's metrics takes ten times as long."""
        wanted = (line for line in text.splitlines() if line.startswith(self._wanted))
        for line in islice(wanted, _MOST_LINES):
            try:
                for family in text_string_to_metric_families(line + "\n"):
                    yield from family.samples
            except (ValueError, IndexError, KeyError):
                self._say_once(line[:80], ("a line that is no metric",))

    def _say_once(self, what: str, names: tuple[str, ...]) -> None:
        if not self._quiet and what not in self._said and len(self._said) < 64:
            self._said.add(what)
            logger.warning("the engine's metrics lack %s (%s): taken as none", what, ", ".join(names))


def _rank(labels: Mapping[str, str], rank_labels: Sequence[str]) -> int:
    for label in rank_labels:
        if (value := labels.get(label, "")).isdigit():
            return count(value)
    return 0


def _first(samples: Mapping[str, Mapping[int, float]], rank: int, names: tuple[str, ...]) -> float | None:
    return next((samples[name][rank] for name in names if rank in samples.get(name, {})), None)


def _all(samples: Mapping[str, Mapping[int, float]], names: tuple[str, ...]) -> Iterator[tuple[int, float]]:
    for name in names:
        yield from samples.get(name, {}).items()
