"""The values that policies work on. No I/O, no clock, no state.

Nobody changes them; they are not frozen, since freezing triples the cost of making one, and every request makes two a
worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from warmroute.config import Weights


@dataclass(slots=True)
class RequestFacts:
    """One request. `sequence` numbers the requests of this gateway and pool; `prompt_tokens` is 0 when not known."""

    sequence: int
    prompt_tokens: int


@dataclass(slots=True)
class CandidateFacts:
    """One worker that could take the request, as seen at this moment. Tokens throughout.

    `matched_tokens`: of the prompt, held on device or host, after the engine's own cap; `host_tokens` of them are on
    the host. `reserved_tokens`: prefill booked by gateways and not yet computed. `reported_waiting_tokens`: the
    engine's own count, None when its report is missing or late. `in_flight`: requests booked on it.
    """

    worker: str
    matched_tokens: int = 0
    host_tokens: int = 0
    reserved_tokens: int = 0
    reported_waiting_tokens: int | None = None
    in_flight: int = 0


@dataclass(slots=True)
class Terms:
    """What a policy made of one candidate; `cost` decides, least first."""

    worker: str
    matched_tokens: int
    pending_tokens: float
    uncached_tokens: float
    in_flight: int
    cost: float


@dataclass(slots=True)
class Decision:
    """The winner's position among the candidates, and every candidate's terms in the same order."""

    winner: int
    terms: tuple[Terms, ...]


Policy = Callable[[RequestFacts, Sequence[CandidateFacts], Weights, Random], Decision]
"""A policy is a pure function and gets at least one candidate. Equal costs are drawn from at random."""


def least(terms: Sequence[Terms], random: Random) -> Decision:
    """The candidate of least cost; ties break at random."""
    costs = [term.cost for term in terms]
    best = min(costs)
    if costs.count(best) == 1:
        return Decision(costs.index(best), tuple(terms))
    tied = [position for position, cost in enumerate(costs) if cost == best]
    return Decision(random.choice(tied), tuple(terms))
