"""How many sequences a worker runs at a time, by its reports."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.state.slots import SlotEstimate


def test_a_plateau_while_requests_wait_is_the_limit() -> None:
    estimate = SlotEstimate()
    for running in range(1, 9):
        assert estimate.observe(running, 0) == 0
    assert [estimate.observe(8, waiting) for waiting in (3, 2, 5, 1, 4, 2)][-1] == 8
    # It is known of a worker that is idle for a while too.
    assert estimate.observe(2, 0) == 8


def test_requests_that_wait_for_their_prefill_tell_nothing() -> None:
    estimate, random = SlotEstimate(), Random(1)
    assert not any(estimate.observe(random.randint(1, 60), random.randint(0, 4)) for _ in range(1000))


def test_a_worker_without_a_queue_has_no_known_limit() -> None:
    estimate = SlotEstimate()
    assert not any(estimate.observe(8, 0) for _ in range(100))


def test_a_limit_that_was_raised_or_lowered_is_learned_anew() -> None:
    estimate = SlotEstimate()
    for limit in (8, 16, 4):
        assert [estimate.observe(limit, 3) for _ in range(1000)][-1] == limit


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=300))
def test_it_is_a_number_that_the_worker_has_run(reports: list[tuple[int, int]]) -> None:
    estimate, seen = SlotEstimate(), {0}
    for running, waiting in reports:
        seen.add(running)
        assert estimate.observe(running, waiting) in seen
