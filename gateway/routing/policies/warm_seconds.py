"""The default policy's cost in seconds, once prefill rates are learned.

    work(p) = uncached(p) * (1 + c k (cached(p) + uncached(p) / 2)) + f(p) / a(p)
    cost(p) = a(p) * [ pending(p) + (1 + g(p) + q + w n(p)) work(p) + d n(p) + m over(p) ] + s(p)

| symbol | meaning |
|---|---|
| a(p) | seconds that p takes for one prompt token, learned; f(p): fixed seconds of a request |
| k | tokens that each token of context before a token costs it, learned: attention is dearer the longer the prompt |
| c = 0 | how much of that is counted |
| work(p) | the request's prefill as so many tokens without context; bookings take it, so pending(p) is in it too |

The other symbols and the weights as in `policies.warm`. Beside the token form it sees that workers differ in
speed. That long prompts cost more than their length it can count too, but on public traces that did not help: c = 1
changed the mean time to first token by -3 to +7 % (docs/routing.md). A candidate without a rate takes the median of the
others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import median

from gateway.routing.policies.facts import (
    CandidateFacts,
    Decision,
    PrefillRate,
    RequestFacts,
    Terms,
    least,
    unknown_waiting,
)
from gateway.routing.policies.memory import memory_overruns
from gateway.routing.policies.prices import eviction_prices, queued_price, slot_wait_seconds
from warmroute.config.pool import Weights


def applies(candidates: Sequence[CandidateFacts]) -> bool:
    """Whether rates are known for at least half of the candidates."""
    missing = [candidate.rate for candidate in candidates].count(None)
    return 2 * missing <= len(candidates)


def choose(request: RequestFacts, candidates: Sequence[CandidateFacts], weights: Weights, random: Random) -> Decision:
    """See the module's formula; at least one candidate has a rate."""
    tokens = request.prompt_tokens
    unknown, overruns = unknown_waiting(candidates), memory_overruns(tokens, candidates)
    rates = [candidate.rate for candidate in candidates if candidate.rate is not None]
    if len(rates) < len(candidates):
        usual = median_rate(rates)
        rates = [candidate.rate or usual for candidate in candidates]
    price, fixed, per_stream, context = weights.host_price, weights.g, weights.w, weights.context
    queued, evictions = queued_price(request, candidates, unknown), eviction_prices(candidates, fixed, per_stream)
    stay = request.stay_seconds
    per_reply, per_overrun = weights.decode_tokens, weights.memory_tokens
    terms = []
    for candidate, rate, over, eviction in zip(candidates, rates, overruns, evictions, strict=True):
        reported, matched, in_flight = candidate.reported_waiting_tokens, candidate.matched_tokens, candidate.in_flight
        per_token = rate.per_token
        pending = unknown if reported is None else float(reported)
        if pending < candidate.reserved_tokens:
            pending = float(candidate.reserved_tokens)
        uncached = tokens - (matched - price * candidate.host_tokens)
        if uncached < 0:
            uncached = 0.0
        # As `rate.work_tokens`, without the call where context does not count.
        work = rate.work_tokens(uncached, tokens - uncached, context) if context else uncached + rate.fixed / per_token
        decode, memory = per_token * per_reply * in_flight, per_token * per_overrun * over
        wait = slot_wait_seconds(candidate, stay) if candidate.slots else 0.0
        price_of_work = 1 + eviction + queued + per_stream * in_flight
        cost = per_token * (pending + price_of_work * work) + decode + memory + wait
        terms.append(
            Terms(
                candidate.worker,
                matched,
                pending,
                uncached,
                in_flight,
                cost,
                work,
                decode,
                memory,
                wait,
                eviction,
                queued,
            )
        )
    return least(terms, random, "seconds")


def median_rate(rates: Sequence[PrefillRate]) -> PrefillRate:
    """The median of every part of at least one rate."""
    return PrefillRate(
        median(rate.per_token for rate in rates),
        median(rate.fixed for rate in rates),
        median(rate.context for rate in rates),
    )
