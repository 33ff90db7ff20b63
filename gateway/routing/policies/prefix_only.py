"""Baseline: the worker that holds most of the prompt, however loaded it is.

cost(p) = uncached(p)

Shows what load-blind cache affinity does: whatever most prompts begin with ends up on one worker.
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
        term.cost = term.uncached_tokens
    return least(terms, random)


POLICY: Final = Policy("prefix_only", choose, facts=frozenset({"prompt_tokens", "matched_tokens"}))
