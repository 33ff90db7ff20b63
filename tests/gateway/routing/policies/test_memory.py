"""The default policy avoids workers whose KV cache would overflow."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies.facts import CandidateFacts
from gateway.routing.policies.warm import POLICY
from tests.gateway.routing.policies.support import WEIGHTS, candidates, request

WARM = POLICY.choose


def test_a_full_cache_costs() -> None:
    full = CandidateFacts("full", 900, kv_use=0.95, kv_capacity_tokens=100_000)
    free = CandidateFacts("free", kv_use=0.2, kv_capacity_tokens=100_000)
    decision = WARM(request(1000), [full, free], WEIGHTS, Random(0))
    assert decision.terms[0].memory == pytest.approx(500_000 * (0.95 + (1000 + 256) / 100_000 - 0.9))
    assert decision.terms[1].memory == 0
    assert decision.winner == 1


def test_unknown_kv_use_is_the_median_of_the_others() -> None:
    others = [CandidateFacts(name, kv_use=use) for name, use in [("a", 0.1), ("b", 0.96), ("c", 0.99)]]
    decision = WARM(request(1000), [CandidateFacts("unknown"), *others], WEIGHTS, Random(0))
    assert decision.terms[0].memory == decision.terms[2].memory > 0


@given(workers=candidates, tokens=st.integers(1, 100_000), use=st.floats(0, 1))
def test_equal_memory_does_not_decide(workers: list[CandidateFacts], tokens: int, use: float) -> None:
    without = [replace(worker, kv_use=None, rate=None) for worker in workers]
    alike = [replace(worker, kv_use=use, kv_capacity_tokens=100_000) for worker in without]
    before = WARM(request(tokens), without, WEIGHTS, Random(1))
    after = WARM(request(tokens), alike, WEIGHTS, Random(1))
    assert before.terms[after.winner].cost == pytest.approx(before.terms[before.winner].cost, abs=1e-6)
