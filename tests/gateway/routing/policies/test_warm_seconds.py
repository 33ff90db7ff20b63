"""The default policy counts in seconds once prefill rates are known."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies.facts import CandidateFacts, PrefillRate
from gateway.routing.policies.warm import POLICY
from tests.gateway.routing.policies.support import FAST, SLOW, WEIGHTS, candidates, request, winner
from warmroute.config.pool import Weights

WARM = POLICY.choose


def test_the_formula_in_seconds() -> None:
    rate = PrefillRate(per_token=2e-5, fixed=0.004, context=1e-5)
    worker = CandidateFacts("a", 512, reserved_tokens=1000, reported_waiting_tokens=700, in_flight=2, rate=rate)
    decision = WARM(request(2000), [worker], Weights(context=0.5), Random(0))
    (terms,) = decision.terms
    work = 1488 * (1 + 0.5 * 1e-5 * (512 + 744)) + 0.004 / 2e-5
    assert decision.unit == "seconds"
    assert terms.work_tokens == pytest.approx(work)
    assert terms.decode == pytest.approx(2e-5 * 100 * 2)
    assert terms.cost == pytest.approx(2e-5 * (1000 + (1 + 3 + 0.2 * 2) * work + 100 * 2))


def test_seconds_see_that_a_worker_is_slow() -> None:
    """Half the work on a worker of a tenth the speed."""
    slow = CandidateFacts("slow", 500, rate=SLOW)
    assert winner(WARM, 1000, slow, CandidateFacts("fast", rate=FAST)) == "fast"
    assert winner(WARM, 1000, replace(slow, rate=None), CandidateFacts("fast")) == "slow"


def test_cost_is_in_seconds_once_half_of_the_candidates_have_a_rate() -> None:
    plain, known = CandidateFacts("a"), CandidateFacts("b", rate=FAST)
    assert WARM(request(10), [plain, known], WEIGHTS, Random(0)).unit == "seconds"
    assert WARM(request(10), [plain, plain, known], WEIGHTS, Random(0)).unit == "tokens"


def test_an_unknown_rate_is_the_median_of_the_others() -> None:
    known = [CandidateFacts(name, rate=PrefillRate(rate)) for name, rate in [("a", 1e-5), ("b", 3e-5), ("c", 9e-5)]]
    decision = WARM(request(1000), [CandidateFacts("unknown"), *known], WEIGHTS, Random(0))
    assert decision.terms[0].cost == pytest.approx(decision.terms[2].cost)


@given(workers=candidates, tokens=st.integers(1, 100_000), factor=st.floats(0.1, 10))
def test_seconds_of_equal_workers_without_context_decide_as_tokens_do(
    workers: list[CandidateFacts], tokens: int, factor: float
) -> None:
    in_tokens = WARM(request(tokens), [replace(worker, rate=None) for worker in workers], WEIGHTS, Random(1))
    rate = PrefillRate(1e-5 * factor)
    in_seconds = WARM(request(tokens), [replace(worker, rate=rate) for worker in workers], WEIGHTS, Random(1))
    assert in_tokens.terms[in_seconds.winner].cost == pytest.approx(in_tokens.terms[in_tokens.winner].cost)
