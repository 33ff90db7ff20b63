from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.leased_bucket import Bucket, LeasedBucket

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
    bucket = LeasedBucket(6000, 0.0)
    sizes = []
    now = 0.0
    for _ in range(9):
        refill_request = bucket.refill_request(1 if not bucket.held else 0, 0 if bucket.held else 1, now)
        bucket.granted(refill_request, refill_request.wanted, 5000, now)
        used = bucket.held
        bucket.use(used, now)
        sizes.append(used)
        now += 0.1
    assert sizes[:3] == [1, 3, 7], "who waits, and the lease"
    assert max(sizes) == sizes[-1] == 101
    bucket.granted(bucket.refill_request(0, 0, now), 100, 5000, now)
    assert not bucket.due(now + 0.5)
    assert bucket.due(now + 1)
    refill_request = bucket.refill_request(0, 0, now + 1)
    assert (refill_request.spent, refill_request.wanted, bucket.held) == (-100, 0, 0)


def test_more_than_a_whole_share_is_let_through_when_it_is_full_and_paid_back() -> None:
    bucket = LeasedBucket(60, 0.0)
    bucket.alone(4, 0.0)
    assert bucket.has(40, 0.0)
    bucket.use(40, 0.0)
    assert not bucket.has(1, 60.0)
    assert bucket.seconds_until(1, 60.0) == 44
    assert not bucket.has(1, 103.9)
    assert bucket.has(1, 104.0)


def test_what_was_used_without_redis_is_charged_when_it_is_back_but_no_more_than_was_not_refilled() -> None:
    short, long = LeasedBucket(60, 0.0), LeasedBucket(60, 0.0)
    for bucket in (short, long):
        bucket.alone(1, 0.0)
        bucket.use(30, 0.0)
    assert short.refill_request(0, 0, 1.0).spent == 29
    assert long.refill_request(0, 0, 600.0).spent == 0
    refill_request = short.refill_request(0, 0, 1.0)
    short.use(5, 1.0)
    short.granted(refill_request, 10, 20, 1.1)
    assert short.held == 5


def test_a_debt_is_paid_with_the_next_order_and_owed_again_when_that_fails() -> None:
    bucket = LeasedBucket(60, 0.0)
    bucket.use(7, 0.0)
    assert bucket.due(0.0)
    refill_request = bucket.refill_request(0, 0, 0.0)
    assert (refill_request.spent, bucket.held) == (7, 0)
    bucket.failed(refill_request)
    assert bucket.held == -7
    bucket.use(10**9, 0.0)
    assert bucket.held == -600


def test_a_limit_that_changes_without_redis_holds_at_once() -> None:
    bucket = LeasedBucket(60, 0.0)
    bucket.alone(2, 0.0)
    bucket.resize(6)
    assert bucket.remaining(0.0) == 3
    bucket.resize(600)
    assert bucket.remaining(60.0) == 300


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("used", [0, 1, 250, 700])
@pytest.mark.parametrize("now", [0.0, 0.7, 30.0, 90.0])
def test_the_outlook_is_what_remains_and_when_all_of_it_is_back(now: float, used: int, alone: bool) -> None:
    bucket = LeasedBucket(600, 0.0)
    refill_request = bucket.refill_request(1, 300, 0.0)
    bucket.granted(refill_request, 300, 300, 0.0)
    if alone:
        bucket.alone(2, 0.0)
    bucket.use(used, 0.0)
    assert bucket.outlook(now) == (bucket.remaining(now), pytest.approx(bucket.seconds_until(600, now)))
