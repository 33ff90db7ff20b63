"""Why a request would go where it would go: every worker with what it holds, what it has to do and what that costs, by
the router's own functions. Nothing is booked, numbered or expected; for people who ask, never on a request's way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.prompts.keyer import KeySpace, Prompt
from gateway.routing.candidates import NO_CONSTRAINTS, Constraints
from gateway.routing.census.workers import Worker
from gateway.routing.policies.facts import CandidateFacts, Terms, Unit
from gateway.routing.router import NOBODY, Choice, PoolRouter, Trace
from gateway.routing.state.pool_state import NO_DEPTHS
from gateway.routing.state.rates import first_byte_seconds
from indexer.reader.mirror import Match

NO_CANDIDATE = "not considered"
"""Why a worker is out for which no filter says so."""


@dataclass(frozen=True, slots=True)
class MatchView:
    """How many of a prompt's tokens a worker holds from the first on, by where that is known from: the index, by tier;
    what was routed to it (`approximate`); what is expected after requests of the last seconds (`predicted`). Whole
    index blocks. `matched_tokens` is what counts, after the engine's own cap."""

    matched_tokens: int
    device_tokens: int
    host_tokens: int
    approximate_tokens: int
    predicted_tokens: int


@dataclass(frozen=True, slots=True)
class LoadView:
    """What a worker has to do. `in_flight` and `reserved_tokens`: requests and prefill tokens booked on it by gateways.
    `waiting_tokens` and `kv_use`: as it reports; None where its report is missing or late, and the median of the
    others' counts. `slots`: sequences that it runs at a time, 0 when not known."""

    in_flight: int
    reserved_tokens: int
    waiting_tokens: int | None
    kv_use: float | None
    slots: int


@dataclass(frozen=True, slots=True)
class TermsView:
    """The terms of a worker's cost, as the policy made them; `decode`, `memory`, `slot_wait` and `cost` in the
    decision's unit. `eviction` and `queued`: parts of the price of an uncached token."""

    pending_tokens: float
    uncached_tokens: float
    work_tokens: float
    in_flight: int
    decode: float
    memory: float
    slot_wait: float
    eviction: float
    queued: float
    cost: float


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker. `index`: `late` where its entries do not count now, `none` where the index does not know it. Without
    `terms` it is no candidate, and `removed_by` says which filter took it out. `estimate_seconds`: from the pick to the
    first byte, where its prefill rate is learned."""

    worker: str
    address: str
    state: str
    removed_by: str | None
    index: Literal["current", "late", "none"]
    match: MatchView
    load: LoadView
    terms: TermsView | None
    estimate_seconds: float | None


@dataclass(frozen=True, slots=True)
class WinnerView:
    """Where the request would go. `tied`: candidates of the same cost, the winner among them, of which one is drawn.
    `margin`: what the next best costs more; negative where a policy does not take the least."""

    worker: str
    cost: float
    tied: int
    next_best: str | None
    margin: float | None


@dataclass(frozen=True, slots=True)
class RoutingView:
    """A decision that was not made. `workers`: the candidates, least cost first, then the others. `winner`: None where
    no worker can be asked."""

    policy: str
    unit: Unit | None
    weights: Mapping[str, float | None]
    bookings: Literal["all gateways", "own"]
    candidates: int
    winner: WinnerView | None
    workers: tuple[WorkerView, ...]


def explain_routing(
    router: PoolRouter, prompt: Prompt | None, constraints: Constraints = NO_CONSTRAINTS
) -> RoutingView:
    """The decision that `PoolRouter.choose` would make now for a request's first attempt."""
    trace = Trace()
    choice = router.choose(prompt, NOBODY, constraints, trace)
    view = _View(router, prompt)
    workers = [] if choice is None else _candidates(view, choice, trace)
    known = {worker.uid for worker in trace.candidates}
    others = [worker for worker in router.census.workers.all if worker.uid not in known]
    facts, matches = router.state.facts(others, prompt, view.space, router.clock())
    removed = [
        view.worker(worker, fact, match, removed_by=trace.filtered.get(worker.uid, NO_CANDIDATE))
        for worker, fact, match in zip(others, facts, matches, strict=True)
    ]
    removed.sort(key=lambda each: each.worker)
    return RoutingView(
        policy=router.config.policy,
        unit=None if choice is None else choice.decision.unit,
        weights=router.config.weights.model_dump(),
        bookings="all gateways" if router.state.peers.shared(router.clock()) else "own",
        candidates=len(workers),
        winner=None if choice is None else _winner(choice),
        workers=(*workers, *removed),
    )


def _candidates(view: _View, choice: Choice, trace: Trace) -> list[WorkerView]:
    decision = choice.decision
    rows = zip(trace.candidates, trace.facts, trace.matches, decision.terms, strict=True)
    ordered = sorted(enumerate(rows), key=lambda row: (row[1][3].cost, row[0] != decision.winner, row[1][0].name))
    return [view.worker(worker, fact, match, terms) for _, (worker, fact, match, terms) in ordered]


def _winner(choice: Choice) -> WinnerView:
    terms, winner = choice.decision.terms, choice.decision.winner
    won = terms[winner]
    others = [term for position, term in enumerate(terms) if position != winner]
    best = min(others, key=lambda term: term.cost, default=None)
    return WinnerView(
        worker=won.worker,
        cost=_round(won.cost),
        tied=sum(term.cost == won.cost for term in terms),
        next_best=None if best is None else best.worker,
        margin=None if best is None else _round(best.cost - won.cost),
    )


class _View:
    """What all workers' views need."""

    def __init__(self, router: PoolRouter, prompt: Prompt | None) -> None:
        self.space: KeySpace | None = router.census.current().space
        self._router = router
        self._prompt = prompt
        keys = prompt.keys if prompt is not None and self.space is not None else ()
        self._predicted = router.state.predicted(keys) if keys else NO_DEPTHS
        self._late = router.state.index.late
        self._now = router.clock()

    def worker(
        self,
        worker: Worker,
        facts: CandidateFacts,
        match: Match,
        terms: Terms | None = None,
        removed_by: str | None = None,
    ) -> WorkerView:
        index_id = worker.index_id
        return WorkerView(
            worker=worker.name,
            address=worker.target.address,
            state=worker.state(self._now).value,
            removed_by=removed_by,
            index="none" if index_id is None else "late" if index_id in self._late else "current",
            match=self._match(worker, facts, match),
            load=LoadView(
                facts.in_flight, facts.reserved_tokens, facts.reported_waiting_tokens, facts.kv_use, facts.slots
            ),
            terms=None if terms is None else _terms(terms),
            estimate_seconds=None if terms is None else self._seconds(worker, terms),
        )

    def _match(self, worker: Worker, facts: CandidateFacts, match: Match) -> MatchView:
        size = 0 if self.space is None else self.space.index_block_tokens
        routed = worker.approximate
        return MatchView(
            matched_tokens=facts.matched_tokens,
            device_tokens=0 if routed else match.device_blocks * size,
            host_tokens=0 if routed else match.host_blocks * size,
            approximate_tokens=match.blocks * size if routed else 0,
            predicted_tokens=self._predicted.get(worker.uid, 0) * size,
        )

    def _seconds(self, worker: Worker, terms: Terms) -> float | None:
        tokens = 0 if self._prompt is None else self._prompt.tokens
        seconds = first_byte_seconds(self._router.state.rates.rate(worker.uid), terms, tokens)
        return None if seconds is None else _round(seconds)


def _terms(terms: Terms) -> TermsView:
    return TermsView(
        pending_tokens=_round(terms.pending_tokens),
        uncached_tokens=_round(terms.uncached_tokens),
        work_tokens=_round(terms.work_tokens),
        in_flight=terms.in_flight,
        decode=_round(terms.decode),
        memory=_round(terms.memory),
        slot_wait=_round(terms.slot_wait),
        eviction=_round(terms.eviction),
        queued=_round(terms.queued),
        cost=_round(terms.cost),
    )


def _round(value: float) -> float:
    """To a microsecond, or a millionth of a token: the rest is noise of the arithmetic."""
    return round(float(value), 6)
