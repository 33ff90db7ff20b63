"""One pool's routing: who the workers are (`census`), what is known of them (`state`), and the pick.

Everything here runs within one turn of the event loop, so two requests in the same turn see each other's bookings.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gateway.http.outcome import Outcome
from gateway.prompts.keyer import Prompt
from gateway.routing.candidates import NO_CONSTRAINTS, Constraints, candidates
from gateway.routing.census.census import IndexView, PoolCensus
from gateway.routing.census.workers import Worker
from gateway.routing.metrics import RoutingMetrics
from gateway.routing.policies.facts import CandidateFacts, Decision, RequestFacts, Terms
from gateway.routing.policies.registry import POLICIES
from gateway.routing.state.pool_state import NO_KEYS, PoolState, Reports
from gateway.routing.state.predictions import Prediction
from gateway.routing.state.reservations import Booking
from gateway.routing.state.sessions import prefer_session_worker
from indexer.reader.mirror import Match
from warmroute.config.pool import PoolConfig

AFFINITY_BLOCKS: Final = 4
"""Leading index blocks by which a prompt counts as like another, for policies that hash it."""
NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)  # not frozen: see gateway.routing.policies.facts
class Choice:
    """A decision and the worker it picked."""

    worker: Worker
    decision: Decision
    terms: Terms
    """The winner's."""
    confirmed_blocks: int
    """Leading index blocks of the prompt that the worker holds without what is predicted."""
    chosen_at: float
    """By the router's clock."""


@dataclass(slots=True)
class Trace:
    """What a decision went by, for those who ask; facts and matches in the order of the candidates."""

    candidates: list[Worker] = field(default_factory=list)
    facts: list[CandidateFacts] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    """Without what is predicted."""
    filtered: dict[str, str] = field(default_factory=dict)
    """Why each other worker, by uid, is no candidate."""
    random: Random = field(default_factory=Random)
    """Draws in place of the router's, whose later picks must not change because somebody asks."""


class PoolRouter:
    """Picks workers of one pool."""

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
        """`clock` gives seconds of `time.monotonic`."""
        policy = POLICIES[config.policy]
        self.config = config
        self.metrics = metrics
        self.clock = clock
        self.random = random or Random()
        self.sequence = 0
        """The latest request's number."""
        self.census = PoolCensus(config, index, self._left)
        self.state = PoolState(config, index, reports, rated=config.cost == "auto" and "rate" in policy.facts)
        self._choose = policy.choose
        self._keeps_sessions = policy.keeps_sessions
        self._hashes = "affinity" in policy.facts

    def next_request(self) -> None:
        """Number the next request; all attempts of one request share a number."""
        self.sequence += 1
        self.state.retry_budget.request(self.clock())

    def choose(
        self,
        prompt: Prompt | None,
        exclude: AbstractSet[str] = NOBODY,
        constraints: Constraints = NO_CONSTRAINTS,
        trace: Trace | None = None,
    ) -> Choice | None:
        """The policy's pick among the candidates that are not excluded (by uid); None when there is none. Books and
        counts nothing. With `trace`, which is filled in, it is the pick of a request to come."""
        census, state = self.census.current(), self.state
        now, session = self.clock(), constraints.session
        sequence, random, filtered = self.sequence, self.random, None
        if trace is not None:
            sequence, random, filtered = sequence + 1, trace.random, trace.filtered
        workers = candidates(census.workers, state.index.late, exclude, constraints, now, random, filtered)
        if not workers:
            return None
        facts, matches = state.facts(workers, prompt, census.space, now)
        affinity = (session or _affinity(prompt)) if self._hashes else 0
        tokens = prompt.tokens if prompt else 0
        request = RequestFacts(sequence, tokens, affinity, state.stay_seconds, state.work_tokens.value)
        decision = self._choose(request, facts, self.config.weights, random)
        if session and self._keeps_sessions and (last := state.sessions.worker_of(session, now)) is not None:
            keyed, sized = prompt is not None and bool(prompt.keys), request.prompt_tokens > 0
            prefer_session_worker(decision, [worker.uid for worker in workers], last, keyed=keyed, sized=sized)
        if trace is not None:
            trace.candidates, trace.facts, trace.matches = workers, facts, matches
        winner = decision.winner
        return Choice(workers[winner], decision, decision.terms[winner], matches[winner].blocks, now)

    def book(self, choice: Choice, prompt: Prompt | None) -> tuple[Booking, Prediction | None]:
        """Book the pick, and expect the prompt's blocks on it, unless all of them are known there already."""
        state, uid, terms = self.state, choice.worker.uid, choice.terms
        if prompt is not None:
            state.work_tokens.observe(terms.work_tokens)
        booking = state.reservations.book(uid, round(terms.work_tokens) if prompt else 0, choice.chosen_at)
        if prompt is None or len(prompt.keys) <= choice.confirmed_blocks:
            return booking, None
        prediction = state.predictions.predict(uid, prompt.keys)
        space = self.census.space
        if space is not None:
            matched_blocks = terms.matched_tokens // space.index_block_tokens
            state.peers.routed(prediction, matched_blocks, prompt.tokens - terms.matched_tokens)
        return booking, prediction

    def session_routed(self, session: int, choice: Choice) -> None:
        """Remember that the session's request goes to the worker chosen, and count it."""
        outcome = self.state.sessions.routed(session, choice.worker.uid, choice.chosen_at)
        self.metrics.session_requests.labels(self.config.name, outcome).inc()

    def _left(self, worker: Worker) -> None:
        """Forget what is known of a worker, and its series; its open bookings are freed when their requests end."""
        self.state.forget(worker.uid)
        if all(other.name != worker.name for other in self.census.workers.all):
            for outcome in Outcome:
                with suppress(KeyError):
                    self.metrics.worker_requests.remove(self.config.name, worker.name, outcome.value)


def _affinity(prompt: Prompt | None) -> int:
    """The key of the prompt's first blocks: equal for prompts that begin alike."""
    keys = prompt.keys if prompt is not None else NO_KEYS
    return keys[min(len(keys), AFFINITY_BLOCKS) - 1] if keys else 0
