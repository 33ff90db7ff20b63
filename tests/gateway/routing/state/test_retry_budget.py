"""The retry budget: what it gives is bounded by requests and time, whatever the order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.state.retry_budget import RetryBudget


def test_a_share_of_the_requests_and_a_floor() -> None:
    budget = RetryBudget(0.25, 1.0, burst=10)
    assert sum(budget.take(0) for _ in range(50)) == 10
    for _ in range(8):
        budget.request(0)
    assert [budget.take(0) for _ in range(3)] == [True, True, False]
    assert [budget.take(1.5), budget.take(1.5)] == [True, False]


def test_none_means_none() -> None:
    budget = RetryBudget(0, 0)
    budget.request(0)
    assert not budget.take(1000)


@given(
    st.floats(0, 1),
    st.floats(0, 5),
    st.lists(st.tuples(st.booleans(), st.floats(-1, 10)), max_size=200),
)
def test_it_never_gives_more_than_it_got(ratio: float, floor: float, steps: list[tuple[bool, float]]) -> None:
    budget = RetryBudget(ratio, floor, burst=5)
    now, requests, taken, waited = 0.0, 0, 0, 0.0
    budget.request(now)
    for is_request, step in steps:
        now += step  # a clock that goes back gives nothing
        waited += max(0.0, step)
        if is_request:
            budget.request(now)
            requests += 1
        else:
            taken += budget.take(now)
        assert 0 <= budget.balance <= 5
    assert taken <= 5 + ratio * (requests + 1) + floor * waited + 1e-6
