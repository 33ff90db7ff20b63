"""What an uncached token costs beside its own prefill, and what a request without a slot waits.

    g(p) = 1/4 + 2 full(p) r / (1 - r) (1 + w n)  the blocks that it evicts
    q = 4 least queue / usual prefill             those whom it delays, once prompts wait at every worker
    s(p) = max(0, n(p) + 1 - slots(p)) / slots(p) * stay

| symbol | meaning |
|---|---|
| r | share of the evicted blocks that are computed again (`indexer.reader.eviction_price`); full(p): 0 with room, 1 |
| w n | what is computed again stalls others too: their mean over the workers |
| 2 | by measurement: at 1 a pool at the edge of its caches' room falls into thrashing, out of which no price leads |
| least queue | least pending(p); 0 while a worker is out of slots: there requests wait for those |
| usual prefill | of one request, in the mean: with the queue, how many prompts wait, and come while these do |
| slots(p) | sequences that p runs at a time; stay: from a reply's first byte to its last |
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from gateway.routing.policies.facts import CandidateFacts, RequestFacts

EVICTION_FACTOR: Final = 2.0
QUEUED_FACTOR: Final = 4.0
MOST_PRICE: Final = 12.0
"""Of each of g and q."""
LEAST_PRICE: Final = 0.25
"""Of a copy where there is room: siblings of a new prompt would else each be computed on a worker of their own, and be
answered no sooner."""
UNSEEN_EVICTION: Final = 3.0
"""g of a worker whose cache cannot be seen."""
LEAST_WORK_TOKENS: Final = 64.0
USUAL_TOKENS_PER_SECOND: Final = 10_000.0
"""What a second counts as in tokens of prefill, while no rate is learned."""


def queued_price(request: RequestFacts, candidates: Sequence[CandidateFacts], unknown: float) -> float:
    """q; 0 while a usual prefill is not known. `unknown`: tokens that wait at a worker without a report."""
    usual = request.usual_work_tokens
    if not usual:
        return 0.0
    least = inf
    for candidate in candidates:
        if candidate.slots and candidate.in_flight >= candidate.slots:
            return 0.0
        reported = candidate.reported_waiting_tokens
        tokens = unknown if reported is None else float(reported)
        if tokens < candidate.reserved_tokens:
            tokens = float(candidate.reserved_tokens)
        if tokens < least:
            least = tokens
            if not least:
                return 0.0
    return min(MOST_PRICE, QUEUED_FACTOR * least / max(usual, LEAST_WORK_TOKENS))


def eviction_prices(candidates: Sequence[CandidateFacts], fixed: float | None, per_stream: float) -> list[float]:
    """g of each. `fixed`: as configured, in place of what is measured; `per_stream`: w."""
    if fixed is not None:
        return [fixed] * len(candidates)
    in_flight = sum([candidate.in_flight for candidate in candidates])
    factor = EVICTION_FACTOR * (1 + per_stream * in_flight / len(candidates))
    prices = []
    for candidate in candidates:
        measured = candidate.eviction
        if not measured:
            prices.append(UNSEEN_EVICTION if measured is None else LEAST_PRICE)
        else:
            prices.append(min(MOST_PRICE, LEAST_PRICE + factor * measured))
    return prices


def slot_wait_seconds(candidate: CandidateFacts, stay_seconds: float) -> float:
    """s(p): until a slot is free, of which `slots` come in the time of one stay; the candidate's slots are known."""
    ahead = candidate.in_flight + 1 - candidate.slots
    return ahead * stay_seconds / candidate.slots if ahead > 0 else 0.0
