"""Baseline: every worker in turn, whatever it holds.

winner = candidates in order of name, the (sequence mod count)-th
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from gateway.routing.policies.facts import CandidateFacts, Decision, RequestFacts, plain_terms
from gateway.routing.policies.policy import Policy
from warmroute.config.pool import Weights


def choose(request: RequestFacts, candidates: Sequence[CandidateFacts], weights: Weights, random: Random) -> Decision:
    """See the module's formula; costs are how many turns a worker is away."""
    order = sorted(range(len(candidates)), key=lambda position: candidates[position].worker)
    count = len(order)
    costs = [0.0] * count
    for place, position in enumerate(order):
        costs[position] = float((place - request.sequence) % count)
    return Decision(order[request.sequence % count], tuple(plain_terms(request, candidates, costs)), "rank")


POLICY: Final = Policy("round_robin", choose, facts=frozenset({"sequence"}))
