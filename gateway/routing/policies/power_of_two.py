"""Baseline: two workers drawn at random, the one with fewer requests in flight.

cost(p) = n(p) where p is drawn, else n(p) + max n + 1

Source: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10), 2001.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from gateway.routing.policies.facts import CandidateFacts, Decision, RequestFacts, least, plain_terms
from gateway.routing.policies.policy import Policy
from warmroute.config.pool import Weights


def choose(request: RequestFacts, candidates: Sequence[CandidateFacts], weights: Weights, random: Random) -> Decision:
    """See the module's formula."""
    drawn = random.sample(range(len(candidates)), min(2, len(candidates)))
    behind = max(candidate.in_flight for candidate in candidates) + 1
    costs = [
        float(candidate.in_flight if position in drawn else candidate.in_flight + behind)
        for position, candidate in enumerate(candidates)
    ]
    return least(plain_terms(request, candidates, costs), random, "requests")


POLICY: Final = Policy("power_of_two", choose, facts=frozenset({"in_flight"}))
