"""Prefix only goes by the match alone."""

from __future__ import annotations

from gateway.routing.policies.facts import CandidateFacts
from gateway.routing.policies.prefix_only import POLICY
from tests.gateway.routing.policies.support import winner


def test_prefix_only_follows_the_longest_match_into_any_queue() -> None:
    holder = CandidateFacts("holder", 900, reserved_tokens=10**6, in_flight=500)
    assert winner(POLICY.choose, 1000, holder, CandidateFacts("other", 899)) == "holder"
