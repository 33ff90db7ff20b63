"""The default policy: least expected prefill work before and because of this request.

    cost(p) = pending(p) + (1 + g + w n(p)) uncached(p)

| symbol | meaning |
|---|---|
| pending(p) | prefill tokens booked on p, not yet computed: max(reservations, the engine's reported waiting tokens) |
| uncached(p) | prompt tokens minus the match on p; a host block counts as `1 - host_price` of a device block |
| n(p) | requests in flight on p |
| g = 3 | price of the blocks evicted to make room; protects reuse |
| w = 0.3 | price of stalling the n(p) streams that share the worker; keeps long cold prompts away from busy workers |

Weights from a discrete-event simulation of 8 and 32 workers over public request traces; docs/architecture.md has the
figures. A candidate without a report takes the median of the others': it is never best for want of facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import median

from gateway.routing.facts import CandidateFacts, Decision, RequestFacts, Terms, least
from warmroute.config import Weights


def choose(request: RequestFacts, candidates: Sequence[CandidateFacts], weights: Weights, random: Random) -> Decision:
    """See the module's formula."""
    reports = [
        candidate.reported_waiting_tokens for candidate in candidates if candidate.reported_waiting_tokens is not None
    ]
    unknown = float(median(reports)) if 0 < len(reports) < len(candidates) else 0.0
    tokens, price, per_token, per_stream = request.prompt_tokens, weights.host_price, 1 + weights.g, weights.w
    terms = []
    for candidate in candidates:
        reported, matched, in_flight = candidate.reported_waiting_tokens, candidate.matched_tokens, candidate.in_flight
        pending = unknown if reported is None else float(reported)
        if pending < candidate.reserved_tokens:
            pending = float(candidate.reserved_tokens)
        uncached = tokens - (matched - price * candidate.host_tokens)
        if uncached < 0:
            uncached = 0.0
        cost = pending + (per_token + per_stream * in_flight) * uncached
        terms.append(Terms(candidate.worker, matched, pending, uncached, in_flight, cost))
    if tokens == 0:
        # The prompt is unknown: uncached work says nothing, and requests in flight are what is left to go by.
        _cost_by_load(terms)
    return least(terms, random)


def _cost_by_load(terms: Sequence[Terms]) -> None:
    """Set the costs: pending tokens plus, for each request in flight, the mean prefill it may still bring."""
    in_flight = sum([term.in_flight for term in terms])
    mean = max(1.0, sum([term.pending_tokens for term in terms]) / in_flight) if in_flight else 1.0
    for term in terms:
        term.uncached_tokens = 0.0
        term.cost = term.pending_tokens + mean * term.in_flight
