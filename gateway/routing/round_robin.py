"""Baseline: every worker in turn, whatever it holds.

winner = candidates in order of name, the (sequence mod count)-th
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from gateway.routing.facts import CandidateFacts, Decision, RequestFacts, Terms
from warmroute.config import Weights


def choose(request: RequestFacts, candidates: Sequence[CandidateFacts], weights: Weights, random: Random) -> Decision:
    """See the module's formula."""
    order = sorted(range(len(candidates)), key=lambda position: candidates[position].worker)
    winner = order[request.sequence % len(order)]
    return Decision(
        winner,
        tuple(
            Terms(
                candidate.worker,
                candidate.matched_tokens,
                candidate.reserved_tokens,
                request.prompt_tokens - candidate.matched_tokens,
                candidate.in_flight,
                cost=float(position != winner),
            )
            for position, candidate in enumerate(candidates)
        ),
    )
