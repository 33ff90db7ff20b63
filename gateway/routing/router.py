"""One pool's routing: gathers facts, asks the policy, books before it returns.

Everything here runs within one event-loop turn, so two requests in the same turn see each other's bookings.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from gateway.prompts.keyer import KeySpace, Prompt
from gateway.routing.assignment import Outcome
from gateway.routing.candidates import NO_WISH, Wish, candidates
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import State, Worker, WorkerTable
from gateway.routing.metrics import RoutingMetrics
from gateway.routing.policies.facts import CandidateFacts, Decision, RequestFacts, Terms
from gateway.routing.policies.registry import POLICIES
from gateway.routing.state.approximate import DEFAULT_CAPACITY_KEYS
from gateway.routing.state.predictions import Prediction
from gateway.routing.state.reservations import Booking
from gateway.routing.state.retry_budget import RetryBudget
from gateway.routing.state.sessions import Sessions, preferred
from gateway.routing.state.snapshot import NO_KEYS, IndexView, Reports, Sight, is_approximate
from indexer.keys import pool_fingerprint
from indexer.layout import WorkerFacts
from indexer.reader.mirror import Match, Mirror
from warmroute.config.pool import PoolConfig
from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS

logger = logging.getLogger(__name__)

WARNINGS = 16  # different complaints that are logged, once each
AFFINITY_BLOCKS: Final = 4  # leading index blocks by which a prompt counts as like another, where hashing goes by it


@dataclass(slots=True)  # not frozen: see gateway.routing.facts
class Choice:
    """A decision and the worker it picked."""

    worker: Worker
    decision: Decision
    confirmed_blocks: int = 0
    """Leading index blocks of the prompt that the worker holds without what is predicted."""

    @property
    def terms(self) -> Terms:
        return self.decision.terms[self.decision.winner]


@dataclass(slots=True)  # not frozen: see gateway.routing.facts
class Considered:
    """What the policy was told of the candidates, and what it made of it; in the order of the candidates."""

    candidates: list[Worker]
    facts: list[CandidateFacts]
    matches: list[Match]
    """Without what is predicted."""
    decision: Decision


class PoolRouter:
    """Picks workers of one pool. `clock` gives seconds of `time.monotonic`."""

    def __init__(
        self,
        config: PoolConfig,
        index: IndexView,
        reports: Reports,
        metrics: RoutingMetrics,
        *,
        clock: Callable[[], float],
        random: Random | None = None,
    ) -> None:
        self.config = config
        self.workers = WorkerTable()
        self.sight = Sight(config.name, index, reports, rated=config.cost == "auto")
        self.reservations = self.sight.reservations
        self.predictions = self.sight.predictions
        self.flight = self.sight.flight
        self.approximate = self.sight.approximate
        self.rates = self.sight.rates
        self.sessions = Sessions()
        self.index = index
        self.metrics = metrics
        self.clock = clock
        self._policy = POLICIES[config.policy]
        self._heeds_sessions = config.policy == "warm"
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
        for worker in self.workers.set_index(mirror.workers, mirror.slots):
            self._left(worker)
        self._derive()

    def set_targets(self, targets: Iterable[Target]) -> list[Worker]:
        """Take discovery's complete set; returns the workers that left."""
        gone = self.workers.set_targets(targets)
        for worker in gone:
            self._left(worker)
        self._derive()
        return gone

    def _left(self, worker: Worker) -> None:
        """Forget what is known of a worker, and its series; its open bookings go when their requests end."""
        self.sight.forget(worker.uid)
        if all(other.name != worker.name for other in self.workers.all):
            for outcome in Outcome:
                with suppress(KeyError):
                    self.metrics.worker_requests.remove(self.config.name, worker.name, outcome.value)

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
        if not told and len(self.workers) and self._tokenizer_digest:
            # Nobody has said Hello: prompts are keyed for approximate mode, as workers would.
            size = DEFAULT_INDEX_BLOCK_TOKENS
            fingerprint = pool_fingerprint(
                index_block_tokens=size, base_model=self.config.model, tokenizer=self._tokenizer_digest
            )
            self._space = KeySpace(fingerprint, size)

    # --- picking -----------------------------------------------------------------------------------------------------

    def choose(
        self, prompt: Prompt | None, exclude: AbstractSet[str] = frozenset(), wish: Wish = NO_WISH
    ) -> Choice | None:
        """The policy's pick among the candidates that are not excluded (by uid); None when there is none."""
        seen = self.consider(prompt, exclude, wish, self._sequence, self._random)
        if seen is None:
            return None
        winner = seen.decision.winner
        return Choice(seen.candidates[winner], seen.decision, seen.matches[winner].blocks)

    def consider(
        self,
        prompt: Prompt | None,
        exclude: AbstractSet[str],
        wish: Wish,
        sequence: int,
        random: Random,
        filtered: dict[str, str] | None = None,
    ) -> Considered | None:
        """As `choose`, with all that went into it; books and counts nothing. `sequence`: the request's number. Takes
        into `filtered` why each other worker, by uid, is no candidate."""
        self._refresh()
        now = self.clock()
        workers = candidates(self.workers, self.index.late, exclude, wish, now, random, filtered)
        if not workers:
            return None
        facts, matches = self.sight.facts(workers, prompt, self._space, now)
        request = RequestFacts(sequence, prompt.tokens if prompt else 0, wish.session or _affinity(prompt))
        decision = self._policy(request, facts, self.config.weights, random)
        if wish.session and self._heeds_sessions:
            _heed(decision, workers, prompt, self.sessions.home(wish.session, now))
        return Considered(workers, facts, matches, decision)

    def stayed(self, session: int, choice: Choice) -> None:
        """A session's request goes where the choice says."""
        outcome = self.sessions.used(session, choice.worker.uid, self.clock())
        self.metrics.session_requests.labels(self.config.name, outcome).inc()

    @property
    def known_workers(self) -> list[Worker]:
        """All workers of discovery, those that get no requests now among them."""
        self._refresh()
        return self.workers.all

    @property
    def sequence(self) -> int:
        """The latest request's number."""
        return self._sequence

    def next_request(self) -> None:
        """Number the next request; all attempts of one request share a number."""
        self._sequence += 1
        self.retry_budget.request(self.clock())

    @property
    def approximate_workers(self) -> int:
        """Workers in approximate mode."""
        return sum(map(is_approximate, self.workers.all))

    # --- booking -----------------------------------------------------------------------------------------------------

    def book(self, choice: Choice, prompt: Prompt | None) -> tuple[Booking, Prediction | None]:
        """Book the pick, and expect the prompt's blocks on it, unless all of them are known there already."""
        uid = choice.worker.uid
        booking = self.reservations.book(uid, round(choice.terms.work_tokens) if prompt else 0, self.clock())
        if prompt is None or len(prompt.keys) <= choice.confirmed_blocks:
            return booking, None
        prediction = self.predictions.predict(uid, prompt.keys)
        if self._space is not None:
            matched_blocks = choice.terms.matched_tokens // self._space.index_block_tokens
            self.flight.routed(prediction, matched_blocks, prompt.tokens - choice.terms.matched_tokens)
        return booking, prediction

    def computed(self, worker: Worker, prompt: Prompt) -> None:
        """A reply's first byte came: the worker holds the prompt, as far as it says nothing itself."""
        if prompt.keys and is_approximate(worker):
            capacity = worker.facts.capacity.get("device", 0) if worker.facts else 0
            self.approximate.computed(worker.uid, prompt.keys, capacity or DEFAULT_CAPACITY_KEYS)

    def publish_gauges(self) -> None:
        """Set the gauges that show this pool's state."""
        pool, now = self.config.name, self.clock()
        self._refresh()
        self.predictions.expire(now)
        states = Counter(worker.state(now) for worker in self.workers.all)
        for state in State:
            self.metrics.workers.labels(pool, state.value).set(states[state])
        self.metrics.unjoined_workers.labels(pool).set(self.workers.unjoined)
        self.metrics.approximate_workers.labels(pool).set(self.approximate_workers)
        rated = sum(self.rates.rate(worker.uid) is not None for worker in self.workers.all)
        self.metrics.rated_workers.labels(pool).set(rated)
        late = self.index.late
        self.metrics.late_workers.labels(pool).set(sum(worker.index_id in late for worker in self.workers.all))
        self.metrics.unreported_workers.labels(pool).set(self.sight.unreported(self.workers.all, now))
        self.metrics.predicted_keys.labels(pool).set(self.predictions.keys)
        for worker in self.workers.all:
            booked = self.reservations.of(worker.uid)
            self.metrics.in_flight_requests.labels(pool, worker.name).set(booked.requests)
            self.metrics.pending_tokens.labels(pool, worker.name).set(booked.pending_tokens)


def _heed(decision: Decision, workers: list[Worker], prompt: Prompt | None, home: str | None) -> None:
    """Let a session's home win where it is good enough."""
    position = next((place for place, worker in enumerate(workers) if worker.uid == home), None)
    if position is not None:
        keyed, sized = prompt is not None and bool(prompt.keys), prompt is not None and prompt.tokens > 0
        decision.winner = preferred(decision, position, keyed=keyed, sized=sized)


def _affinity(prompt: Prompt | None) -> int:
    """The key of the prompt's first blocks: equal for prompts that begin alike."""
    keys = prompt.keys if prompt is not None else NO_KEYS
    return keys[min(len(keys), AFFINITY_BLOCKS) - 1] if keys else 0
