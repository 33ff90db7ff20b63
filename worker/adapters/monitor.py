"""Watches one engine over HTTP: health, load, restarts, adapters; and takes events that must be asked for.

The events say nothing while an engine idles, and nothing of its death: liveness comes from here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from warmroute.config.agent import AgentConfig
from worker.adapters.engine_client import EngineClient, EngineError
from worker.adapters.engine_metrics import MetricsReader, Scrape
from worker.adapters.engines.base import Drain
from worker.adapters.engines.registry import engine_named, known_metrics
from worker.adapters.profile import Profile, probe, read_models
from worker.adapters.rank_worker import RankWorker
from worker.events import EngineLoad
from worker.metrics import AgentMetrics

logger = logging.getLogger(__name__)

HEALTH_SECONDS: Final = 1.0
ADAPTERS_SECONDS: Final = 5.0
# At most one complaint in so long about an engine that fails again and again.
COMPLAINT_SECONDS: Final = 30.0
DRAIN_SECONDS: Final = 0.1
DRAINED_BYTES: Final = 64 * 1024 * 1024
"""Most that an engine may keep until it is asked: a million tokens as JSON."""
# Clocks of a process start are as exact as this.
START_SECONDS: Final = 1.0


class EngineChangedError(Exception):
    """The engine is another one than it was: blocks, ranks, sockets or model; everything is set up anew."""


class Monitor:
    """`run` is the one task; it ends by EngineChangedError alone."""

    def __init__(
        self,
        client: EngineClient,
        config: AgentConfig,
        profile: Profile,
        workers: Sequence[RankWorker],
        metrics: AgentMetrics,
    ) -> None:
        self.up = True
        self.trouble = ""
        self._client = client
        self._config = config
        self._engine = engine_named(config.engine)
        self._profile = profile
        self._workers = {worker.rank: worker for worker in workers}
        self._metrics = metrics
        self._reader = MetricsReader(known_metrics())
        self._started_at = profile.started_at
        self._adapters = dict(profile.adapters)
        self._gone = False
        self._down_said = False
        self._probe_due = False
        self._size_said = False
        self._metrics_said = False
        self._due: dict[str, float] = {}

    async def run(self) -> None:
        """Watch until cancelled. Raises EngineChangedError."""
        interval = self._config.load_interval_seconds
        while True:
            began = time.monotonic()
            try:
                await self._look(began)
            except EngineError as error:
                self._failed(error)
            for worker in self._workers.values():
                worker.report(self._metrics)
                self._say_size(worker)
            await asyncio.sleep(max(0.0, interval - (time.monotonic() - began)))

    async def drain(self, drain: Drain) -> None:
        """Take the events of an engine that keeps them until they are asked for. Runs until cancelled."""
        decoder = drain.decoder
        first = self._profile.ranks[0]
        complained = False
        strangers: set[int] = set()  # as many as the decoder knows ranks
        while True:
            try:
                ranks = decoder.decode(await self._client.json(drain.path, method="POST", limit=DRAINED_BYTES))
            except EngineError as error:
                if error.status and not complained:
                    logger.warning("the engine's events cannot be drained: %s; %s", error, drain.remedy)
                complained = complained or bool(error.status)
                ranks = {}
            for rank, drained in ranks.items():
                if rank in self._workers:
                    self._workers[rank].take(drained.events, missing=drained.missing)
                elif rank not in strangers:
                    strangers.add(rank)
                    logger.error("events of rank %d are left out: give --ranks %d or more", rank, rank + 1)
            self._workers[first.number].counts["undecodable"] = decoder.undecodable
            await asyncio.sleep(DRAIN_SECONDS)

    async def _look(self, now: float) -> None:
        scrape = await self._scrape()
        if self._due_now("health", now, HEALTH_SECONDS):
            await self._look_at_health()
        if self._gone or self._restarted(scrape):
            self._returned(scrape)
        if self._probe_due:
            await self._probe_again()
        if not self.up and self._down_said:
            logger.info("the engine answers again")
            self._down_said = False
        self.up, self.trouble = True, ""
        self._metrics.engine_up.set(1)
        for rank, load in scrape.loads.items():
            if rank in self._workers:
                self._workers[rank].load = load
        if self._due_now("adapters", now, ADAPTERS_SECONDS):
            await self._look_at_adapters()

    async def _look_at_health(self) -> None:
        try:
            await self._client.text("/health")
        except EngineError as error:
            if error.status not in {404, 405}:  # a server without that path is one that answers
                raise

    async def _scrape(self) -> Scrape:
        try:
            text = await self._client.text("/metrics")
        except EngineError as error:
            self._metrics.scrape_failures.inc()
            if error.status:  # an engine without metrics is still an engine: its health says whether it is well
                if not self._metrics_said:
                    logger.warning("the engine's metrics cannot be read, its load is taken as none: %s", error)
                self._metrics_said = True
                return Scrape(dict.fromkeys(self._workers, EngineLoad()))
            raise
        return self._engine.read_metrics(text, self._reader)

    def _restarted(self, scrape: Scrape) -> bool:
        if scrape.started_at is None or self._started_at is None:
            return False
        return abs(scrape.started_at - self._started_at) > START_SECONDS

    def _returned(self, scrape: Scrape) -> None:
        """Another process answers: whatever the one before held is gone."""
        logger.warning("the engine has started anew: its cache is another one")
        # Once it was gone everything was forgotten, but messages of its may still have been under way: by their time.
        if not self._gone or scrape.started_at is not None:
            self._new_life(scrape.started_at)
        self._gone = False
        self._started_at = scrape.started_at
        self._probe_due = True

    async def _probe_again(self) -> None:
        profile = await probe(self._client, self._config)
        self._probe_due = False
        if profile != self._profile or profile.blind != self._profile.blind:
            raise EngineChangedError

    def _failed(self, error: EngineError) -> None:
        if self.up and self._due_now("complaint", time.monotonic(), COMPLAINT_SECONDS):
            logger.warning("the engine does not answer as it should: %s", error)
            self._down_said = True
        self._due.pop("health", None)  # it is asked again before the engine counts as well
        self.up, self.trouble = False, str(error)
        self._metrics.engine_up.set(0)
        if error.refused and not self._gone:
            # Nobody listens: the process is gone, and its cache with it.
            self._gone = True
            self._new_life()
            for worker in self._workers.values():
                worker.load = EngineLoad()

    def _new_life(self, started_at: float | None = None) -> None:
        for worker in self._workers.values():
            worker.new_life(started_at)

    async def _look_at_adapters(self) -> None:
        _, _, adapters = read_models(await self._client.json("/v1/models"))
        replaced = [name for name, path in adapters.items() if self._adapters.get(name, path) != path]
        gone = [name for name in self._adapters if name not in adapters]
        for worker in self._workers.values():
            for name in (*replaced, *gone):
                worker.replace_adapter(name)
            worker.publisher.set_adapters(sorted(adapters))
        self._adapters = adapters

    def _say_size(self, worker: RankWorker) -> None:
        seen = worker.translator.seen_block_tokens
        if seen and not self._size_said:
            self._size_said = True
            said = worker.translator.block_tokens
            logger.error(
                "the engine's blocks have %d tokens, not %d, and are left out: give --engine-block-tokens %d",
                seen,
                said,
                seen,
            )

    def _due_now(self, what: str, now: float, seconds: float) -> bool:
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + seconds
        return True
