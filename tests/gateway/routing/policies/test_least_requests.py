"""Least requests goes by load alone."""

from __future__ import annotations

from gateway.routing.policies.facts import CandidateFacts
from gateway.routing.policies.least_requests import POLICY
from tests.gateway.routing.policies.support import winner


def test_least_requests() -> None:
    workers = [CandidateFacts("a", 999, in_flight=2), CandidateFacts("b", in_flight=1)]
    assert winner(POLICY.choose, 1000, *workers) == "b"
