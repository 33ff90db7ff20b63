"""LMetric multiplies waiting work and batch."""

from __future__ import annotations

from random import Random

from gateway.routing.policies.facts import CandidateFacts
from gateway.routing.policies.lmetric import POLICY
from tests.gateway.routing.policies.support import WEIGHTS, request


def test_lmetric_multiplies_work_and_batch() -> None:
    few, many = CandidateFacts("few", 0, in_flight=1), CandidateFacts("many", 700, in_flight=9)
    decision = POLICY.choose(request(1000), [few, many], WEIGHTS, Random(0))
    assert [term.cost for term in decision.terms] == [1000 * 2, 300 * 10]
    assert decision.winner == 0
