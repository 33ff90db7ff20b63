"""The default policy: least expected prefill work before and because of this request.

    cost(p) = pending(p) + (1 + g(p) + q + w n(p)) uncached(p) + d n(p) + m over(p) + s(p)

| symbol | meaning |
|---|---|
| pending(p) | prefill tokens booked on p, not yet computed: max(reservations, the engine's reported waiting tokens) |
| uncached(p) | prompt tokens minus the match on p; a host block counts as `1 - host_price` of a device block |
| n(p) | requests in flight on p |
| g(p) | price of the blocks evicted to make room, measured or as configured; protects reuse |
| q | price of delaying those whose prompts wait; fewer tokens are to be computed where many wait |
| w = 0.2 | price of stalling the n(p) streams that share the worker; keeps long cold prompts away from busy workers |
| d = 100 | decode: tokens of prefill that the slower steps beside one more stream cost over a whole reply |
| over(p), m = 5e5 | memory: KV use after admission, as a share, beyond 0.9; there requests wait for blocks |
| s(p) | wait for a slot, where the worker runs as many sequences as it can |

`gateway.routing.policies.prices` has g, q and s. The same in seconds (`gateway.routing.policies.warm_seconds`) once
prefill rates are learned for half of the candidates.

Weights from a discrete-event simulation of 8 and 32 workers over public request traces; docs/routing.md has the
figures. A candidate without a report takes the median of the others': it is never best for want of facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from gateway.routing.policies import warm_seconds
from gateway.routing.policies.facts import CandidateFacts, Decision, RequestFacts, Terms, least, unknown_waiting
from gateway.routing.policies.memory import memory_overruns
from gateway.routing.policies.policy import Policy
from gateway.routing.policies.prices import (
    USUAL_TOKENS_PER_SECOND,
    eviction_prices,
    queued_price,
    slot_wait_seconds,
)
from warmroute.config.pool import Weights


def choose(request: RequestFacts, candidates: Sequence[CandidateFacts], weights: Weights, random: Random) -> Decision:
    """See the module's formula."""
    tokens = request.prompt_tokens
    if tokens and warm_seconds.applies(candidates):
        return warm_seconds.choose(request, candidates, weights, random)
    unknown, overruns = unknown_waiting(candidates), memory_overruns(tokens, candidates)
    price, fixed, per_stream, stay = weights.host_price, weights.g, weights.w, request.stay_seconds
    queued, evictions = queued_price(request, candidates, unknown), eviction_prices(candidates, fixed, per_stream)
    per_reply, per_overrun = weights.decode_tokens, weights.memory_tokens
    terms = []
    for candidate, over, eviction in zip(candidates, overruns, evictions, strict=True):
        reported, matched, in_flight = candidate.reported_waiting_tokens, candidate.matched_tokens, candidate.in_flight
        pending = unknown if reported is None else float(reported)
        if pending < candidate.reserved_tokens:
            pending = float(candidate.reserved_tokens)
        uncached = tokens - (matched - price * candidate.host_tokens)
        if uncached < 0:
            uncached = 0.0
        decode, memory = per_reply * in_flight, per_overrun * over
        wait = USUAL_TOKENS_PER_SECOND * slot_wait_seconds(candidate, stay) if candidate.slots else 0.0
        cost = pending + (1 + eviction + queued + per_stream * in_flight) * uncached + decode + memory + wait
        terms.append(
            Terms(
                candidate.worker,
                matched,
                pending,
                uncached,
                in_flight,
                cost,
                uncached,
                decode,
                memory,
                wait,
                eviction,
                queued,
            )
        )
    if tokens == 0:
        # The prompt is unknown: uncached work says nothing, and requests in flight are what is left to go by.
        _cost_by_load(terms)
    return least(terms, random)


def _cost_by_load(terms: Sequence[Terms]) -> None:
    """Set the costs: pending tokens plus, for each request in flight, the mean prefill it may still bring."""
    in_flight = sum([term.in_flight for term in terms])
    mean = max(1.0, sum([term.pending_tokens for term in terms]) / in_flight) if in_flight else 1.0
    for term in terms:
        term.uncached_tokens = term.work_tokens = 0.0
        term.decode = term.memory = term.slot_wait = term.eviction = term.queued = 0.0
        term.cost = term.pending_tokens + mean * term.in_flight


POLICY: Final = Policy(
    "warm",
    choose,
    facts=frozenset(
        {
            "prompt_tokens",
            "matched_tokens",
            "host_tokens",
            "reserved_tokens",
            "reported_waiting_tokens",
            "in_flight",
            "kv_use",
            "kv_capacity_tokens",
            "rate",
            "slots",
            "eviction",
            "stay_seconds",
            "usual_work_tokens",
        }
    ),
    weights=frozenset({"g", "w", "host_price", "decode_tokens", "memory_tokens", "context"}),
    keeps_sessions=True,
)
