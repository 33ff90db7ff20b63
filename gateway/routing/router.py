"""One pool's routing: gathers facts, asks the policy, books before it returns.

Everything here runs within one event-loop turn, so two requests in the same turn see each other's bookings.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random

from gateway.discovery.targets import Target
from gateway.loads import LoadReports
from gateway.prompts.keyer import KeySpace, Prompt
from gateway.routing.assignment import Outcome
from gateway.routing.facts import CandidateFacts, Decision, RequestFacts, Terms
from gateway.routing.policies import POLICIES
from gateway.routing.predictions import Prediction, Predictions
from gateway.routing.reservations import Booking, Reservations
from gateway.routing.workers import State, Worker, WorkerTable
from indexer.keys import pool_fingerprint
from indexer.mirror import Match, Mirror
from indexer.pool_index import PoolIndex
from warmroute.config import PoolConfig
from warmroute.metrics import GatewayMetrics

logger = logging.getLogger(__name__)

NO_MATCH = Match(0)
WARNINGS = 16  # different complaints that are logged, once each


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision and the worker it picked."""

    worker: Worker
    decision: Decision

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
        self._seen: tuple[Mirror, int] | None = None
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

    def _refresh(self) -> None:
        """Derive again what depends on the index's workers, when they changed."""
        mirror = self.index.mirror
        if self._seen == (mirror, mirror.worker_changes):
            return
        self._seen = (mirror, mirror.worker_changes)
        self.workers.set_index(mirror.workers, mirror.slots)
        self._derive_key_space()

    def set_targets(self, targets: Iterable[Target]) -> list[Worker]:
        """Take discovery's complete set; returns the workers that left."""
        gone = self.workers.set_targets(targets)
        self._derive_key_space()
        return gone

    def _derive_key_space(self) -> None:
        """What most of the workers that requests can go to key by. Others in the index have no say."""
        spaces: Counter[KeySpace] = Counter()
        for facts in (worker.facts for worker in self.workers.all):
            if facts is None:
                continue
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
                    "Give model_path the files that the engine serves",
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

    def choose(self, prompt: Prompt | None, exclude: AbstractSet[str] = frozenset()) -> Choice | None:
        """The policy's pick among the candidates that are not excluded (by uid); None when there is none.

        Ejected workers are asked only when no ready one exists at all, unhealthy ones only when no ejected one does
        either: the answer of a doubtful worker is better than none.
        """
        self._refresh()
        now = self.clock()
        by_state: dict[State, list[Worker]] = {state: [] for state in State}
        for worker in self.workers.all:
            by_state[worker.state(now)].append(worker)
        best = by_state[State.READY] or by_state[State.EJECTED] or by_state[State.UNHEALTHY]
        candidates = [worker for worker in best if worker.target.uid not in exclude]
        if not candidates:
            return None
        facts = self._facts(candidates, prompt, now)
        request = RequestFacts(self._sequence, prompt.tokens if prompt else 0)
        decision = self._policy(request, facts, self.config.weights, self._random)
        return Choice(candidates[decision.winner], decision)

    def next_request(self) -> None:
        """Number the next request; all attempts of one request share a number."""
        self._sequence += 1

    def _facts(self, candidates: Sequence[Worker], prompt: Prompt | None, now: float) -> list[CandidateFacts]:
        self.predictions.expire(now)
        keys = prompt.keys if prompt else []
        confirmed = self.index.mirror.match(keys) if keys else {}
        predicted = self.predictions.match(keys) if keys else {}
        late = self.index.late
        facts = []
        for worker in candidates:
            uid, index_id = worker.target.uid, worker.index_id
            trusted = index_id is not None and index_id not in late
            match = confirmed.get(index_id, NO_MATCH) if trusted and index_id is not None else NO_MATCH
            report = self._reports.get(self.config.name, index_id, now) if trusted and index_id is not None else None
            booked = self.reservations.of(uid)
            matched, host = self._matched_tokens(worker, prompt, match, predicted.get(uid, 0))
            facts.append(
                CandidateFacts(
                    worker=worker.name,
                    matched_tokens=matched,
                    host_tokens=host,
                    reserved_tokens=booked.pending_tokens,
                    reported_waiting_tokens=report.waiting_tokens if report else None,
                    in_flight=booked.requests,
                )
            )
        return facts

    def _matched_tokens(self, worker: Worker, prompt: Prompt | None, match: Match, predicted: int) -> tuple[int, int]:
        """Cached tokens to expect, and how many of them are on the host.

        An engine computes at least the prompt's last token, so a hit ends at the last engine block before it.
        """
        if prompt is None or not prompt.keys or self._space is None:
            return 0, 0
        size = self._space.index_block_tokens
        engine_block = worker.facts.engine_block_tokens if worker.facts else 1
        cap = max(0, prompt.tokens - 1) // engine_block * engine_block
        matched = min(max(match.blocks, predicted) * size, cap)
        return matched, min(match.host_blocks * size, matched)

    # --- booking -----------------------------------------------------------------------------------------------------

    def book(self, choice: Choice, prompt: Prompt | None) -> tuple[Booking, Prediction | None]:
        """Book the pick, and expect the prompt's blocks on it."""
        uid = choice.worker.target.uid
        booking = self.reservations.book(uid, round(choice.terms.uncached_tokens) if prompt else 0)
        return booking, self.predictions.predict(uid, prompt.keys) if prompt and prompt.keys else None

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


class RoutedRequest:
    """One request on its way through a pool: hands out assignments, one an attempt. Implements `Assigner`."""

    def __init__(self, router: PoolRouter, prompt: Prompt | None) -> None:
        self.last: Choice | None = None
        """The latest pick; its terms say what was expected of the worker."""
        self.decided_at: float | None = None
        """When the first pick was made, by the router's clock."""
        self._router = router
        self._prompt = prompt
        self._attempts = 0
        router.next_request()

    def assign(self, exclude: AbstractSet[str]) -> PoolAssignment | None:
        choice = self._router.choose(self._prompt, exclude)
        if choice is None:
            return None
        self.last = choice
        if self.decided_at is None:
            self.decided_at = self._router.clock()
        if self._attempts:
            self._router.metrics.retries.labels(self._router.config.name).inc()
        self._attempts += 1
        return PoolAssignment(self._router, choice, self._prompt)


class PoolAssignment:
    """One attempt's booking. Implements `Assignment`; `worker_id` is the target's uid."""

    def __init__(self, router: PoolRouter, choice: Choice, prompt: Prompt | None) -> None:
        self.worker_id = choice.worker.target.uid
        self.host = choice.worker.target.host
        self.port = choice.worker.target.port
        self.matched_tokens = choice.terms.matched_tokens
        self._router = router
        self._worker = choice.worker
        self._booking, self._prediction = router.book(choice, prompt)
        self._answered = False

    @property
    def reply_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return (
            (b"x-warmroute-worker", self._worker.name.encode("latin-1", "replace")),
            (b"x-warmroute-matched-tokens", b"%d" % self.matched_tokens),
        )

    def first_byte(self) -> None:
        self._answered = True
        self._booking.first_byte()
        if self._prediction is not None:
            self._router.predictions.first_byte(self._prediction, self._router.clock())

    def close(self, outcome: Outcome) -> None:
        self._booking.close()
        if self._prediction is not None and not (self._answered and outcome is Outcome.COMPLETED):
            self._router.predictions.withdraw(self._prediction)
        self._worker.ended(outcome, self._router.clock())
        if self._router.workers.get(self.worker_id) is self._worker:  # else it is gone, and its series with it
            pool = self._router.config.name
            self._router.metrics.worker_requests.labels(pool, self._worker.name, outcome.value).inc()
