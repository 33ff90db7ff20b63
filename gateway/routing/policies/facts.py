"""The values that policies work on. No I/O, no clock, no state.

Nothing changes them after the policy returned, except `Decision.winner` for a session. They are not frozen: that would
triple the cost of making one, and every request makes two a worker. Compiled, an `__init__` of our own takes a third of
the time of the one that `dataclass` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from statistics import median
from typing import Literal

Unit = Literal["tokens", "seconds", "requests", "rank"]
"""What a policy's costs are counted in."""


@dataclass(slots=True)
class RequestFacts:
    """One request. `sequence` numbers the requests of this gateway and pool; `prompt_tokens` is 0 when not known.

    `affinity` is a hash of what such requests have in common, the prompt's first blocks or the session; 0 for nothing.
    Of the pool's latest requests: `stay_seconds`, how long a reply takes from its first byte to its last, and
    `usual_work_tokens`, how much prefill a request is; means, 0 when not known.
    """

    sequence: int
    prompt_tokens: int
    affinity: int = 0
    stay_seconds: float = 0.0
    usual_work_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillRate:
    """What prefill costs on one worker, as learned: `fixed` seconds a request, `per_token` seconds a token, and
    `context` tokens that each token of context before a token costs it (attention grows with what it looks at)."""

    per_token: float
    fixed: float = 0.0
    context: float = 0.0

    def work_tokens(self, uncached: float, cached: float, counted: float = 1.0) -> float:
        """The prefill as so many tokens without context: what is booked for it. `counted`: which share of what context
        costs."""
        return uncached * (1 + counted * self.context * (cached + uncached / 2)) + self.fixed / self.per_token

    def seconds(self, uncached: float, cached: float) -> float:
        """How long the worker computes `uncached` tokens behind `cached` ones, with nothing else to do."""
        return self.per_token * self.work_tokens(uncached, cached)

    def first_byte_seconds(self, pending: float, uncached: float, cached: float) -> float:
        """When the reply begins, after the pick: once `pending` tokens of work and then the prompt are computed."""
        return self.per_token * pending + self.seconds(uncached, cached)


@dataclass(slots=True, init=False)
class CandidateFacts:
    """One worker that could take the request, as seen at this moment. Tokens throughout.

    `matched_tokens`: of the prompt, held on device or host, after the engine's own cap; `host_tokens` of them are on
    the host. `reserved_tokens`: prefill booked by gateways and not yet computed. `reported_waiting_tokens`: the
    engine's own count, None when its report is missing or late. `in_flight`: requests booked on it. `kv_use`: share of
    its KV cache that running requests hold, by its report, None as above. `kv_capacity_tokens`: 0 when not known.
    `rate`: None while it is not learned. `slots`: sequences that it runs at a time, 0 when not known. `eviction`: what
    a token evicted there costs, in prefills of it; None where that cannot be seen.
    """

    worker: str
    matched_tokens: int
    host_tokens: int
    reserved_tokens: int
    reported_waiting_tokens: int | None
    in_flight: int
    kv_use: float | None
    kv_capacity_tokens: int
    rate: PrefillRate | None
    slots: int
    eviction: float | None

    def __init__(
        self,
        worker: str,
        matched_tokens: int = 0,
        host_tokens: int = 0,
        reserved_tokens: int = 0,
        reported_waiting_tokens: int | None = None,
        in_flight: int = 0,
        kv_use: float | None = None,
        kv_capacity_tokens: int = 0,
        rate: PrefillRate | None = None,
        slots: int = 0,
        eviction: float | None = None,
    ) -> None:
        self.worker = worker
        self.matched_tokens = matched_tokens
        self.host_tokens = host_tokens
        self.reserved_tokens = reserved_tokens
        self.reported_waiting_tokens = reported_waiting_tokens
        self.in_flight = in_flight
        self.kv_use = kv_use
        self.kv_capacity_tokens = kv_capacity_tokens
        self.rate = rate
        self.slots = slots
        self.eviction = eviction


@dataclass(slots=True, init=False)
class Terms:
    """What a policy made of one candidate; `cost` decides, least first, in the decision's unit.

    `work_tokens` is what a booking takes: the uncached tokens, or in seconds form what they cost as plain tokens.
    `decode`, `memory` and `slot_wait` are parts of the cost, in its unit. `eviction` and `queued` are parts of what an
    uncached token costs: of what it evicts, and of whom it delays.
    """

    worker: str
    matched_tokens: int
    pending_tokens: float
    uncached_tokens: float
    in_flight: int
    cost: float
    work_tokens: float
    decode: float
    memory: float
    slot_wait: float
    eviction: float
    queued: float

    def __init__(
        self,
        worker: str,
        matched_tokens: int,
        pending_tokens: float,
        uncached_tokens: float,
        in_flight: int,
        cost: float,
        work_tokens: float = 0.0,
        decode: float = 0.0,
        memory: float = 0.0,
        slot_wait: float = 0.0,
        eviction: float = 0.0,
        queued: float = 0.0,
    ) -> None:
        self.worker = worker
        self.matched_tokens = matched_tokens
        self.pending_tokens = pending_tokens
        self.uncached_tokens = uncached_tokens
        self.in_flight = in_flight
        self.cost = cost
        self.work_tokens = work_tokens
        self.decode = decode
        self.memory = memory
        self.slot_wait = slot_wait
        self.eviction = eviction
        self.queued = queued


@dataclass(slots=True)
class Decision:
    """The winner's position among the candidates, and every candidate's terms in the same order."""

    winner: int
    terms: tuple[Terms, ...]
    unit: Unit = "tokens"


def least(terms: Sequence[Terms], random: Random, unit: Unit = "tokens") -> Decision:
    """The candidate of least cost; ties break at random."""
    best, winner, tied = inf, 0, 0
    for position, term in enumerate(terms):
        if term.cost < best:
            best, winner, tied = term.cost, position, 1
        elif term.cost == best:
            tied += 1
    if tied > 1:
        winner = random.choice([position for position, term in enumerate(terms) if term.cost == best])
    return Decision(winner, tuple(terms), unit)


def unknown_waiting(candidates: Sequence[CandidateFacts]) -> float:
    """What a worker without a report counts as waiting: the median of the others, so that it is never best for want of
    facts."""
    reports = [candidate.reported_waiting_tokens for candidate in candidates]
    if None not in reports:
        return 0.0
    known = [report for report in reports if report is not None]
    return float(median(known)) if known else 0.0


def plain_terms(
    request: RequestFacts, candidates: Sequence[CandidateFacts], costs: Sequence[float] | None = None
) -> list[Terms]:
    """Terms of a policy without host price, decode and memory; costs are 0 unless given."""
    unknown = unknown_waiting(candidates)
    terms = []
    for position, candidate in enumerate(candidates):
        reported = candidate.reported_waiting_tokens
        terms.append(
            Terms(
                candidate.worker,
                candidate.matched_tokens,
                max(unknown if reported is None else reported, candidate.reserved_tokens),
                uncached := max(0, request.prompt_tokens - candidate.matched_tokens),
                candidate.in_flight,
                costs[position] if costs is not None else 0.0,
                uncached,
            )
        )
    return terms
