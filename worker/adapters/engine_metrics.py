"""An engine's load and facts from its Prometheus metrics, under the names of all versions. No I/O.

What an engine does not export stays neutral (0, or None for facts) and is said once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from worker.adapters.numbers import count
from worker.events import EngineLoad

logger = logging.getLogger(__name__)

RUNNING: Final = ("vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running")
WAITING: Final = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting")
USAGE: Final = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:full_token_usage",
    "sglang:token_usage",
    "trtllm_kv_cache_utilization",
)
# Prompt tokens computed, and requests that they were computed for.
COMPUTED: Final = ("vllm:request_prefill_kv_computed_tokens_sum",)
COMPUTED_REQUESTS: Final = ("vllm:request_prefill_kv_computed_tokens_count",)
PROMPT: Final = ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total")
CACHED: Final = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total")
FINISHED: Final = ("vllm:request_success_total", "sglang:num_requests_total")
CONFIG: Final = ("vllm:cache_config_info",)
CAPACITY: Final = ("sglang:max_total_num_tokens",)
PAGE: Final = ("sglang:page_size",)
START: Final = ("process_start_time_seconds",)

_WANTED: Final = (
    *(*RUNNING, *WAITING, *USAGE, *COMPUTED, *COMPUTED_REQUESTS, *PROMPT, *CACHED, *FINISHED),
    *(*CONFIG, *CAPACITY, *PAGE, *START),
)
_RANK_LABELS: Final = ("engine", "dp_rank", "rank")
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

    def __init__(self, *, quiet: bool = False) -> None:
        """`quiet`: another reader says what is missing."""
        self._quiet = quiet
        self._uncached: dict[int, _Uncached] = {}
        self._said: set[str] = set()

    def read(self, text: str) -> Scrape:
        """Never raises: what cannot be read is missing."""
        samples: dict[str, dict[int, float]] = {}
        scrape = Scrape()
        for sample in self._samples(text):
            rank = _rank(sample.labels)
            if not math.isfinite(sample.value) or rank >= _MOST_RANKS:
                continue
            if sample.name in START:
                scrape.started_at = sample.value
            elif sample.name in CONFIG:
                _read_config(scrape.facts.setdefault(rank, EngineFacts()), sample.labels)
            else:
                by_rank = samples.setdefault(sample.name, {})
                by_rank[rank] = by_rank.get(rank, 0.0) + sample.value
        for rank in {rank for by_rank in samples.values() for rank in by_rank}:
            self._read_rank(rank, partial(_first, samples, rank), scrape)
        for rank, block in _all(samples, PAGE):
            scrape.facts.setdefault(rank, EngineFacts()).block_tokens = count(block) or None
        for rank, tokens in _all(samples, CAPACITY):
            scrape.facts.setdefault(rank, EngineFacts()).cache_tokens = count(tokens) or None
        for what, names in (("running requests", RUNNING), ("waiting requests", WAITING), ("cache use", USAGE)):
            if not any(name in samples for name in names):
                self._say_once(what, names)
        return scrape

    def _read_rank(self, rank: int, get: Callable[[tuple[str, ...]], float | None], scrape: Scrape) -> None:
        running, waiting, usage = get(RUNNING), get(WAITING), get(USAGE)
        if running is None and waiting is None and usage is None:
            return
        uncached = self._uncached.setdefault(rank, _Uncached())
        computed, requests = get(COMPUTED), get(COMPUTED_REQUESTS)
        if computed is None or requests is None:
            prompt, requests = get(PROMPT), get(FINISHED)
            computed = None if prompt is None else prompt - (get(CACHED) or 0.0)
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
        wanted = (line for line in text.splitlines() if line.startswith(_WANTED))
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


def _rank(labels: Mapping[str, str]) -> int:
    for label in _RANK_LABELS:
        if (value := labels.get(label, "")).isdigit():
            return count(value)
    return 0


def _first(samples: Mapping[str, Mapping[int, float]], rank: int, names: tuple[str, ...]) -> float | None:
    return next((samples[name][rank] for name in names if rank in samples.get(name, {})), None)


def _all(samples: Mapping[str, Mapping[int, float]], names: tuple[str, ...]) -> Iterator[tuple[int, float]]:
    for name in names:
        yield from samples.get(name, {}).items()


def _read_config(facts: EngineFacts, labels: Mapping[str, str]) -> None:
    """vLLM's configuration of its cache, in labels."""
    facts.block_tokens = count(labels.get("block_size")) or None
    # With data parallelism newer versions give the blocks of all ranks beside the tokens of one.
    tokens, blocks = count(labels.get("kv_cache_size_tokens")), count(labels.get("num_gpu_blocks"))
    facts.cache_tokens = tokens or count(blocks * (facts.block_tokens or 0)) or None
    if facts.cache_tokens and facts.block_tokens:
        facts.most_blocks = max(blocks, facts.cache_tokens // facts.block_tokens)
    if (enabled := labels.get("enable_prefix_caching")) is not None:
        facts.prefix_caching = enabled == "True"
