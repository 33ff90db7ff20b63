"""Baseline: requests that begin alike go to one worker, and on to the next while it has more than its share.

    order(p)  = workers by descending hash(affinity, name)             (rendezvous hashing)
    room(p)   = n(p) + 1 <= 1.25 * (1 + sum of n) / workers, at least 1
    cost(p)   = place in that order, plus the number of workers where there is no room

A worker that comes or goes moves only the requests that it gains or loses. A request without affinity goes to the
worker with the fewest in flight.

Sources: D. Thaler, C. Ravishankar, Using Name-Based Mappings to Increase Hit Rates, IEEE/ACM ToN 6(1), 1998;
V. Mirrokni, M. Thorup, M. Zadimoghaddam, Consistent Hashing with Bounded Loads, SODA 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import xxhash

from gateway.routing.policies import least_requests
from gateway.routing.policies.facts import CandidateFacts, Decision, RequestFacts, least, plain_terms
from gateway.routing.policies.policy import Policy
from warmroute.config.pool import Weights

BOUND: Final = 1.25
_SEED_MASK: Final = (1 << 64) - 1


def choose(request: RequestFacts, candidates: Sequence[CandidateFacts], weights: Weights, random: Random) -> Decision:
    """See the module's formula."""
    if not request.affinity:
        return least_requests.choose(request, candidates, weights, random)
    seed, count = request.affinity & _SEED_MASK, len(candidates)
    scores = [xxhash.xxh3_64_intdigest(candidate.worker.encode(), seed) for candidate in candidates]
    limit = max(1.0, BOUND * (1 + sum(candidate.in_flight for candidate in candidates)) / count)
    costs = [0.0] * count
    for place, position in enumerate(sorted(range(count), key=scores.__getitem__, reverse=True)):
        costs[position] = float(place if candidates[position].in_flight + 1 <= limit else place + count)
    return least(plain_terms(request, candidates, costs), random, "rank")


POLICY: Final = Policy("consistent_hash", choose, facts=frozenset({"affinity", "in_flight"}))
