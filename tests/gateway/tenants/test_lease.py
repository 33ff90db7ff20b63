from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.lease import Bucket, Lease

steps = st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 30)), max_size=60)


class NaiveBucket:
    """Looks at every use there ever was, in exact numbers."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.uses: list[tuple[int, int]] = []

    def balance(self, now_ms: int) -> Fraction:
        balance, at = Fraction(self.capacity), 0
        for when, amount in [*self.uses, (now_ms, 0)]:
            balance = min(Fraction(self.capacity), balance + Fraction(self.capacity * (when - at), 60_000)) - amount
            at = when
        return balance


@given(st.integers(1, 100), steps)
def test_a_bucket_is_the_naive_one(capacity: int, steps: list[tuple[int, int]]) -> None:
    bucket, naive, now = Bucket(capacity, capacity, 0.0), NaiveBucket(capacity), 0
    for wait, amount in steps:
        now += wait
        expected = naive.balance(now)
        assert abs(bucket.balance(now / 1000) - expected) < 1e-6
        if expected >= amount:
            bucket.use(amount, now / 1000)
            naive.uses.append((now, amount))


def test_a_clock_that_stands_still_or_goes_back_refills_nothing() -> None:
    bucket = Bucket(60, 0, 100.0)
    assert bucket.balance(50.0) == 0
    assert bucket.balance(100.0) == 0
    assert bucket.balance(101.0) == 1


def test_a_lease_is_twice_the_use_up_to_a_second_and_goes_back_when_idle() -> None:
    lease = Lease(6000, 0.0)
    sizes = []
    now = 0.0
    for _ in range(9):
        order = lease.order(1 if not lease.held else 0, 0 if lease.held else 1, now)
        lease.granted(order, order.wanted, 5000, now)
        used = lease.held
        lease.use(used, now)
        sizes.append(used)
        now += 0.1
    assert sizes[:3] == [1, 3, 7], "who waits, and the lease"
    assert max(sizes) == sizes[-1] == 101
    lease.granted(lease.order(0, 0, now), 100, 5000, now)
    assert not lease.due(now + 0.5)
    assert lease.due(now + 1)
    order = lease.order(0, 0, now + 1)
    assert (order.spent, order.wanted, lease.held) == (-100, 0, 0)


def test_more_than_a_whole_share_is_let_through_when_it_is_full_and_paid_back() -> None:
    lease = Lease(60, 0.0)
    lease.alone(4, 0.0)
    assert lease.has(40, 0.0)
    lease.use(40, 0.0)
    assert not lease.has(1, 60.0)
    assert lease.seconds_until(1, 60.0) == 44
    assert not lease.has(1, 103.9)
    assert lease.has(1, 104.0)


def test_what_was_used_without_redis_is_charged_when_it_is_back_but_no_more_than_was_not_refilled() -> None:
    short, long = Lease(60, 0.0), Lease(60, 0.0)
    for lease in (short, long):
        lease.alone(1, 0.0)
        lease.use(30, 0.0)
    assert short.order(0, 0, 1.0).spent == 29
    assert long.order(0, 0, 600.0).spent == 0
    order = short.order(0, 0, 1.0)
    short.use(5, 1.0)
    short.granted(order, 10, 20, 1.1)
    assert short.held == 5


def test_a_debt_is_paid_with_the_next_order_and_owed_again_when_that_fails() -> None:
    lease = Lease(60, 0.0)
    lease.use(7, 0.0)
    assert lease.due(0.0)
    order = lease.order(0, 0, 0.0)
    assert (order.spent, lease.held) == (7, 0)
    lease.failed(order)
    assert lease.held == -7
    lease.use(10**9, 0.0)
    assert lease.held == -600


def test_a_limit_that_changes_without_redis_holds_at_once() -> None:
    lease = Lease(60, 0.0)
    lease.alone(2, 0.0)
    lease.resize(6)
    assert lease.remaining(0.0) == 3
    lease.resize(600)
    assert lease.remaining(60.0) == 300


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("used", [0, 1, 250, 700])
@pytest.mark.parametrize("now", [0.0, 0.7, 30.0, 90.0])
def test_the_outlook_is_what_remains_and_when_all_of_it_is_back(now: float, used: int, alone: bool) -> None:
    lease = Lease(600, 0.0)
    order = lease.order(1, 300, 0.0)
    lease.granted(order, 300, 300, 0.0)
    if alone:
        lease.alone(2, 0.0)
    lease.use(used, 0.0)
    assert lease.outlook(now) == (lease.remaining(now), pytest.approx(lease.seconds_until(600, now)))
