"""Baseline: the worker with the fewest requests in flight, whatever it holds.

cost(p) = n(p)
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from gateway.routing.facts import CandidateFacts, Decision, RequestFacts, Terms, least
from warmroute.config import Weights


def choose(request: RequestFacts, candidates: Sequence[CandidateFacts], weights: Weights, random: Random) -> Decision:
    """See the module's formula."""
    return least(
        [
            Terms(
                candidate.worker,
                candidate.matched_tokens,
                candidate.reserved_tokens,
                request.prompt_tokens - candidate.matched_tokens,
                candidate.in_flight,
                cost=float(candidate.in_flight),
            )
            for candidate in candidates
        ],
        random,
    )
