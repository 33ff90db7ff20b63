"""One pool's routing: gathers facts, asks the policy, books before it returns.

Everything here runs within one event-loop turn, so two requests in the same turn see each other's bookings.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Final

from gateway.discovery.targets import Target
from gateway.loads import LoadReports
from gateway.prompts.keyer import KeySpace, Prompt
from gateway.routing.facts import CandidateFacts, Decision, RequestFacts, Terms
from gateway.routing.policies import POLICIES
from gateway.routing.predictions import Prediction, Predictions
from gateway.routing.reservations import Booking, Reservations
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.workers import State, Worker, WorkerTable
from indexer.keys import pool_fingerprint
from indexer.layout import WorkerFacts
from indexer.mirror import Match, Mirror
from indexer.pool_index import PoolIndex
from warmroute.config import PoolConfig
from warmroute.metrics import GatewayMetrics

logger = logging.getLogger(__name__)

NO_MATCH = Match(0)
NO_MATCHES: Final[Mapping[str, Match]] = {}
NO_KEYS: Final[Sequence[int]] = ()
WARNINGS = 16  # different complaints that are logged, once each


@dataclass(slots=True)  # not frozen: see gateway.routing.facts
class Choice:
    """A decision and the worker it picked."""

    worker: Worker
    decision: Decision
    confirmed_blocks: int = 0
    """Leading index blocks of the prompt that the index knows on the worker."""

    @property
    def terms(self) -> Terms:
        return self.decision.terms[self.decision.winner]


class PoolRouter:
    """Picks workers of one pool. `clock` gives seconds of `time.monotonic`."""

    def __init__(
        self,
        config: PoolConfig,
        index: PoolIndex,
        reports: LoadReports,
        metrics: GatewayMetrics,
        *,
        clock: Callable[[], float],
        random: Random | None = None,
    ) -> None:
        self.config = config
        self.workers = WorkerTable()
        self.reservations = Reservations()
        self.predictions = Predictions()
        self.index = index
        self.metrics = metrics
        self.clock = clock
        self._reports = reports
        self._policy = POLICIES[config.policy]
        self._random = random or Random()
        self._sequence = 0
        self.retry_budget = RetryBudget(config.retry_ratio, config.retries_per_second)
        self._adapters: frozenset[str] = frozenset()
        self._engine: str | None = config.engine
        self._engines: frozenset[str] = frozenset()
        self._seen: Mirror | None = None
        self._seen_changes = 0
        self._space: KeySpace | None = None
        self._tokenizer_digest = ""
        self._warned: set[str] = set()

    # --- the key space -----------------------------------------------------------------------------------------------

    def use_tokenizer(self, digest: str) -> None:
        """Say which tokenizer the gateway has for this pool."""
        self._tokenizer_digest = digest
        self._seen = None

    def key_space(self) -> KeySpace | None:
        """What most workers key by; None where no worker keys with the gateway's own tokenizer.

        The fingerprint is read from the ledger and checked against the gateway's files: a difference would make every
        key wrong, silently.
        """
        self._refresh()
        return self._space

    @property
    def adapters(self) -> frozenset[str]:
        """Adapters that at least one worker says it serves."""
        self._refresh()
        return self._adapters

    @property
    def worker_facts(self) -> list[WorkerFacts]:
        """What the workers that requests can go to say of themselves, those of them that the index knows."""
        self._refresh()
        return [worker.facts for worker in self.workers.all if worker.facts is not None]

    def engine(self) -> str | None:
        """The engine that most workers say they are; the configured one, if any, where none has said so."""
        self._refresh()
        return self._engine

    @property
    def engines(self) -> frozenset[str]:
        """All engines that workers say they are; the configured one, if any, where none has said so."""
        self._refresh()
        return self._engines

    def _refresh(self) -> None:
        """Derive again what depends on the index's workers, when they changed."""
        mirror = self.index.mirror
        if self._seen is mirror and self._seen_changes == mirror.worker_changes:
            return
        self._seen, self._seen_changes = mirror, mirror.worker_changes
        self.workers.set_index(mirror.workers, mirror.slots)
        self._derive()

    def set_targets(self, targets: Iterable[Target]) -> list[Worker]:
        """Take discovery's complete set; returns the workers that left."""
        gone = self.workers.set_targets(targets)
        self._derive()
        return gone

    def _derive(self) -> None:
        """Key space, engine and adapters, by what the workers that requests can go to say; others have no say."""
        told = [worker.facts for worker in self.workers.all if worker.facts is not None]
        spaces: Counter[KeySpace] = Counter()
        engines = Counter(facts.engine for facts in told)
        self._engine = engines.most_common(1)[0][0] if engines else self.config.engine
        self._engines = frozenset(engines or filter(None, [self.config.engine]))
        self._adapters = frozenset(adapter for facts in told for adapter in facts.adapters)
        for facts in told:
            if facts.model != self.config.model and facts.model not in self._warned and len(self._warned) < WARNINGS:
                self._warned.add(facts.model)
                logger.warning(
                    "pool %s: worker %s says that it serves %s, not %s",
                    self.config.name,
                    facts.address,
                    facts.model,
                    self.config.model,
                )
            expected = pool_fingerprint(
                index_block_tokens=facts.index_block_tokens, base_model=facts.model, tokenizer=self._tokenizer_digest
            )
            if facts.fingerprint == expected:
                spaces[KeySpace(facts.fingerprint, facts.index_block_tokens)] += 1
            elif self._tokenizer_digest and facts.fingerprint not in self._warned and len(self._warned) < WARNINGS:
                self._warned.add(facts.fingerprint)
                logger.error(
                    "pool %s: worker %s has fingerprint %s, this gateway's tokenizer gives %s: it is routed by load. "
                    "Give all of the pool's workers the same files, and model_path too where it is set",
                    self.config.name,
                    facts.address,
                    facts.fingerprint,
                    expected,
                )
        if len(spaces) > 1 and "mixed" not in self._warned:
            self._warned.add("mixed")
            logger.warning("pool %s: its workers key in %d ways; most win: %s", self.config.name, len(spaces), spaces)
        self._space = spaces.most_common(1)[0][0] if spaces else None

    # --- picking -----------------------------------------------------------------------------------------------------

    def choose(
        self,
        prompt: Prompt | None,
        exclude: AbstractSet[str] = frozenset(),
        *,
        adapter: str = "",
        only: str | None = None,
    ) -> Choice | None:
        """The policy's pick among the candidates that are not excluded (by uid); None when there is none.

        `adapter`: of the workers that serve it, as far as they say. `only`: the worker with this uid while it is there.
        """
        self._refresh()
        now = self.clock()
        candidates = self._candidates(now, exclude, adapter, only)
        if not candidates:
            return None
        confirmed = self._confirmed(prompt)
        facts = self._facts(candidates, prompt, confirmed, now)
        request = RequestFacts(self._sequence, prompt.tokens if prompt else 0)
        decision = self._policy(request, facts, self.config.weights, self._random)
        worker = candidates[decision.winner]
        return Choice(worker, decision, self._known(confirmed, worker).blocks)

    def _candidates(self, now: float, exclude: AbstractSet[str], adapter: str, only: str | None) -> list[Worker]:
        """Ejected workers are asked only when no ready one exists at all, unhealthy ones only when no ejected one does
        either: the answer of a doubtful worker is better than none. One that starts slowly takes part in some draws."""
        workers = self.workers.all
        if only is not None and only not in exclude and (owner := self.workers.get(only)) is not None:
            return [owner]
        if adapter:
            # A worker without facts may serve it all the same.
            serving = [worker for worker in workers if worker.facts is None or adapter in worker.facts.adapters]
            workers = serving or workers
        best = [worker for worker in workers if worker.healthy and worker.ejected_until <= now]
        if not best:
            best = [worker for worker in workers if worker.healthy] or workers
        candidates = [worker for worker in best if worker.target.uid not in exclude] if exclude else best
        warm = [worker for worker in candidates if worker.warm_at <= now]
        if not warm or len(warm) == len(candidates):
            return candidates
        return [worker for worker in candidates if worker.warm_at <= now or self._random.random() < worker.share(now)]

    def next_request(self) -> None:
        """Number the next request; all attempts of one request share a number."""
        self._sequence += 1
        self.retry_budget.request(self.clock())

    def _confirmed(self, prompt: Prompt | None) -> Mapping[str, Match]:
        """What the index knows of the prompt, by the workers' names there."""
        if prompt is None or self._space is None or not prompt.keys:
            return NO_MATCHES
        return self.index.mirror.match(prompt.keys)

    def _known(self, confirmed: Mapping[str, Match], worker: Worker) -> Match:
        """A worker's match; none where the index is late with it."""
        index_id = worker.index_id
        if index_id is None or index_id in self.index.late:
            return NO_MATCH
        return confirmed.get(index_id, NO_MATCH)

    def _facts(
        self, candidates: Sequence[Worker], prompt: Prompt | None, confirmed: Mapping[str, Match], now: float
    ) -> list[CandidateFacts]:
        self.predictions.expire(now)
        space = self._space
        keys = NO_KEYS if prompt is None or space is None else prompt.keys
        predicted = self.predictions.match(keys) if keys else {}
        pool, late = self.config.name, self.index.late
        report_of, booked_on = self._reports.get, self.reservations.of
        facts = []
        for worker in candidates:
            uid, index_id = worker.target.uid, worker.index_id
            waiting: int | None = None
            match = NO_MATCH
            if index_id is not None and index_id not in late:
                match = confirmed.get(index_id, NO_MATCH)
                report = report_of(pool, index_id, now)
                if report is not None:
                    waiting = report.waiting_tokens
            matched = host = 0
            if keys and prompt is not None and space is not None:
                matched, host = self._matched_tokens(worker, prompt, space, match, predicted.get(uid, 0))
            booked = booked_on(uid)
            # By position: names cost a third more, a worker.
            facts.append(CandidateFacts(worker.name, matched, host, booked.pending_tokens, waiting, booked.requests))
        return facts

    @staticmethod
    def _matched_tokens(
        worker: Worker, prompt: Prompt, space: KeySpace, match: Match, predicted: int
    ) -> tuple[int, int]:
        """Cached tokens to expect, and how many of them are on the host.

        An engine computes at least the prompt's last token, so a hit ends at the last engine block before it.
        """
        size = space.index_block_tokens
        engine_block = worker.facts.engine_block_tokens if worker.facts else 1
        cap = max(0, prompt.tokens - 1) // engine_block * engine_block
        matched = min(max(match.blocks, predicted) * size, cap)
        return matched, min(match.host_blocks * size, matched)

    # --- booking -----------------------------------------------------------------------------------------------------

    def book(self, choice: Choice, prompt: Prompt | None) -> tuple[Booking, Prediction | None]:
        """Book the pick, and expect the prompt's blocks on it, unless the index knows all of them there already."""
        uid = choice.worker.target.uid
        booking = self.reservations.book(uid, round(choice.terms.uncached_tokens) if prompt else 0)
        if prompt is None or len(prompt.keys) <= choice.confirmed_blocks:
            return booking, None
        return booking, self.predictions.predict(uid, prompt.keys)

    def publish_gauges(self) -> None:
        """Set the gauges that show this pool's state."""
        pool, now = self.config.name, self.clock()
        self._refresh()
        self.predictions.expire(now)
        states = Counter(worker.state(now) for worker in self.workers.all)
        for state in State:
            self.metrics.workers.labels(pool, state.value).set(states[state])
        self.metrics.unjoined_workers.labels(pool).set(self.workers.unjoined)
        late = self.index.late
        self.metrics.late_workers.labels(pool).set(sum(worker.index_id in late for worker in self.workers.all))
        self.metrics.predicted_keys.labels(pool).set(self.predictions.keys)
        for worker in self.workers.all:
            booked = self.reservations.of(worker.target.uid)
            self.metrics.in_flight_requests.labels(pool, worker.name).set(booked.requests)
            self.metrics.pending_tokens.labels(pool, worker.name).set(booked.pending_tokens)
