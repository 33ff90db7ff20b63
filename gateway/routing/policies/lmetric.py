"""Baseline without weights: the prefill work that would wait, times the batch it would stall.

cost(p) = (pending(p) + uncached(p)) * (n(p) + 1)

pending(p) as in `policies.warm`. Source: the LMetric scheduler (prefill tokens to compute x batch size).
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
    terms = plain_terms(request, candidates)
    for term in terms:
        term.cost = (term.pending_tokens + term.uncached_tokens) * (term.in_flight + 1)
    return least(terms, random)


POLICY: Final = Policy(
    "lmetric",
    choose,
    facts=frozenset({"prompt_tokens", "matched_tokens", "reserved_tokens", "reported_waiting_tokens", "in_flight"}),
)
