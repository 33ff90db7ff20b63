"""One data-parallel rank as a worker of its own: its publisher, and what leads its engine's events there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import zmq.asyncio
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from warmroute.config.agent import AgentConfig
from warmroute.rpc.security import ClientSecurity
from worker.adapters.engines.registry import engine_named
from worker.adapters.events import EngineEvent
from worker.adapters.feed import Feed
from worker.adapters.profile import Profile, Rank
from worker.adapters.sources import EventSource
from worker.adapters.translate import Translator
from worker.adapters.zmq_source import ZmqSource
from worker.events import AdapterReplaced, CacheCleared, CacheEvent, EngineLoad
from worker.metrics import AgentMetrics, WorkerMetrics
from worker.publish.index_blocks import capacity_keys
from worker.publish.offered_files import ModelFiles
from worker.publish.publisher import Identity, Publisher

logger = logging.getLogger(__name__)

# Where nobody says how much a cache holds: 67 M tokens at 16 a block, so that a table still has a bound.
UNKNOWN_CAPACITY_BLOCKS = 1 << 22
# As many index blocks as an indexer takes of one tier.
MOST_CAPACITY_KEYS = 10_000_000


class RankWorker:
    """Owns no task: the agent runs `publisher.run` and, where there is one, `source.run`."""

    def __init__(
        self,
        config: AgentConfig,
        profile: Profile,
        rank: Rank,
        worker_id: str,
        address: str,
        files: ModelFiles,
        registry: CollectorRegistry,
        security: ClientSecurity,
    ) -> None:
        """Raises ValueError where engine and index blocks do not line up."""
        self.rank = rank.number
        self.load = EngineLoad()
        self.source: ZmqSource | None = None
        self.feed: Feed | None = None
        self._engine = engine_named(config.engine)
        self.translator = Translator(
            rank.block_tokens,
            self._engine.tiers,
            most_host_blocks=config.host_cache_tokens // rank.block_tokens or 1,
        )
        self.counts: Counter[str] = Counter()
        """What became of the engine's messages, by the words of `Feed.counts`."""
        self._counted: Counter[str] = Counter()
        self._ignored: Counter[str] = Counter()
        identity = _identity(config, profile, rank, files, worker_id, address)
        self.publisher = Publisher(config.indexer, identity, lambda: self.load, WorkerMetrics(registry), security)

    def attach(self, source: EventSource, context: zmq.asyncio.Context) -> ZmqSource:
        """Read this rank's events from a ZMQ socket."""
        self.feed = Feed(self.translator, self._apply, self._engine.decode, replay_keeps=source.replay_keeps)
        self.counts = self.feed.counts
        self.source = ZmqSource(source, self.feed, context)
        return self.source

    def take(self, events: Sequence[EngineEvent], *, missing: bool) -> None:
        """Events that came otherwise, in order. `missing`: others before them are lost."""
        if missing:
            if not self.counts["lost"]:
                logger.warning("events of the engine are missing: its buffer is too small, or another took them")
            self.counts["lost"] += 1
            self.new_life()
        self.counts["batches"] += 1
        self._apply(self.translator.translate(events))

    def new_life(self, started_at: float | None = None) -> None:
        """The engine has started anew, at that time of its clock: nothing of what it held before is there."""
        if self.feed is not None:
            self.feed.new_life(started_at)
        else:
            self.translator.forget()
            self._apply([CacheCleared()])

    def replace_adapter(self, adapter: str) -> None:
        """Other weights are served under this name, or none; the events of some engines say so themselves."""
        if not self.translator.numbers_adapters:
            self._apply([AdapterReplaced(adapter)])

    def report(self, metrics: AgentMetrics) -> None:
        """Bring counters into line with what happened since the last call."""
        rank = str(self.rank)
        for what, number in self.counts.items():
            metrics.feed.labels(rank, what).inc(number - self._counted[what])
        for reason, number in self.translator.ignored.items():
            metrics.ignored_blocks.labels(rank, reason).inc(number - self._ignored[reason])
        self._counted, self._ignored = Counter(self.counts), Counter(self.translator.ignored)

    def _apply(self, events: Sequence[CacheEvent]) -> None:
        if events:
            self.publisher.apply(events)


def _identity(
    config: AgentConfig, profile: Profile, rank: Rank, files: ModelFiles, worker_id: str, address: str
) -> Identity:
    blind = profile.approximate

    def keys(tokens: int) -> int:
        return min(MOST_CAPACITY_KEYS, capacity_keys(cache_tokens=tokens, index_block_tokens=config.index_block_tokens))

    most = rank.most_blocks or UNKNOWN_CAPACITY_BLOCKS
    return Identity(
        pool=config.pool,
        worker_id=worker_id,
        address=address,
        model=profile.model,
        engine=config.engine,
        engine_version=profile.version,
        # A worker that publishes no blocks may have any; the table is never used.
        engine_block_tokens=config.index_block_tokens if blind else rank.block_tokens,
        index_block_tokens=config.index_block_tokens,
        capacity_keys=keys(max(rank.cache_tokens, most * rank.block_tokens if not blind else 0)),
        host_capacity_keys=keys(config.host_cache_tokens) if config.host_cache_tokens and not blind else 0,
        capacity_blocks=most,
        host_capacity_blocks=max(1, config.host_cache_tokens // rank.block_tokens),
        publishes_events=not blind,
        adapters=tuple(sorted(profile.adapters)),
        files=files,
    )


class RankedMetrics(Collector):
    """The publishers' metrics of several ranks in one registry, told apart by a label."""

    def __init__(self, registries: Callable[[], Sequence[tuple[int, CollectorRegistry]]]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for rank, registry in self._registries():
            for family in registry.collect():
                target = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    target.samples.append(sample._replace(labels={**sample.labels, "rank": str(rank)}))
        yield from merged.values()
