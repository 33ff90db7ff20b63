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
    unknown = median(reports) if reports else 0
    terms = []
    for candidate in candidates:
        reported = candidate.reported_waiting_tokens
        pending = max(candidate.reserved_tokens, unknown if reported is None else reported)
        cached = candidate.matched_tokens - weights.host_price * candidate.host_tokens
        uncached = max(0.0, request.prompt_tokens - cached)
        cost = pending + (1 + weights.g + weights.w * candidate.in_flight) * uncached
        terms.append(Terms(candidate.worker, candidate.matched_tokens, pending, uncached, candidate.in_flight, cost))
    if request.prompt_tokens == 0:
        # The prompt is unknown: uncached work says nothing, and requests in flight are what is left to go by.
        terms = [
            Terms(term.worker, term.matched_tokens, term.pending_tokens, 0, term.in_flight, cost)
            for term, cost in zip(terms, _load_costs(terms), strict=True)
        ]
    return least(terms, random)


def _load_costs(terms: Sequence[Terms]) -> list[float]:
    """Pending tokens plus, for each request in flight, the mean prefill it may still bring."""
    in_flight = sum(term.in_flight for term in terms)
    mean = max(1.0, sum(term.pending_tokens for term in terms) / in_flight if in_flight else 1.0)
    return [term.pending_tokens + mean * term.in_flight for term in terms]
