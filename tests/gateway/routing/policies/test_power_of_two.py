"""Power of two compares two workers drawn at random."""

from __future__ import annotations

from gateway.routing.policies.facts import CandidateFacts
from gateway.routing.policies.power_of_two import POLICY
from tests.gateway.routing.policies.support import winner


def test_power_of_two_takes_the_less_loaded_of_two_and_never_the_worst_of_all() -> None:
    workers = [CandidateFacts(name, in_flight=load) for load, name in enumerate("abcd")]
    picks = [winner(POLICY.choose, 10, *workers, seed=seed) for seed in range(200)]
    assert set(picks) == {"a", "b", "c"}
    assert picks.count("a") > picks.count("b") > picks.count("c")
