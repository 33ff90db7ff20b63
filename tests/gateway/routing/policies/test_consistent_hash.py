"""Consistent hashing keeps alike prompts on one worker, within a bound of load."""

from __future__ import annotations

from random import Random

from gateway.routing.policies.consistent_hash import POLICY
from gateway.routing.policies.facts import CandidateFacts
from tests.gateway.routing.policies.support import WEIGHTS, request


def test_consistent_hash_keeps_alike_prompts_together_and_spreads_others() -> None:
    policy, workers = POLICY.choose, [CandidateFacts(name) for name in "abcdefgh"]

    def pick(affinity: int, candidates: list[CandidateFacts]) -> str:
        return candidates[policy(request(10, affinity=affinity), candidates, WEIGHTS, Random(0)).winner].worker

    picks = {affinity: pick(affinity, workers) for affinity in range(1, 400)}
    assert all(pick(affinity, workers[::-1]) == picked for affinity, picked in picks.items())
    assert set(picks.values()) == set("abcdefgh")
    # One worker fewer moves its own requests alone.
    without = [worker for worker in workers if worker.worker != "c"]
    assert all(pick(affinity, without) == picked for affinity, picked in picks.items() if picked != "c")


def test_consistent_hash_bounds_the_load_of_a_worker() -> None:
    policy, names = POLICY.choose, "abcd"
    load = dict.fromkeys(names, 0)
    for _ in range(100):
        workers = [CandidateFacts(name, in_flight=load[name]) for name in names]
        load[workers[policy(request(10, affinity=77), workers, WEIGHTS, Random(0)).winner].worker] += 1
    assert max(load.values()) <= 1.25 * 100 / 4 + 1
    assert sum(load.values()) == 100
