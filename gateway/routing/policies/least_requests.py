"""Baseline: the worker with the fewest requests in flight, whatever it holds.

cost(p) = n(p)
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
    costs = [float(candidate.in_flight) for candidate in candidates]
    return least(plain_terms(request, candidates, costs), random, "requests")


POLICY: Final = Policy("least_requests", choose, facts=frozenset({"in_flight"}))
