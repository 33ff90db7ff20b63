"""Round robin takes turns, whatever workers hold."""

from __future__ import annotations

from gateway.routing.policies.facts import CandidateFacts
from gateway.routing.policies.round_robin import POLICY
from tests.gateway.routing.policies.support import winner


def test_round_robin_takes_turns_by_name_whatever_the_order() -> None:
    workers = [CandidateFacts(name) for name in "cab"]
    policy = POLICY.choose
    assert [winner(policy, 10, *workers, sequence=turn) for turn in range(4)] == ["a", "b", "c", "a"]
