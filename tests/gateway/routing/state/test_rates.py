"""Learning prefill rates: exact samples give the machine's own figures, wild ones do no harm."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies.facts import PrefillRate
from gateway.routing.state.rates import (
    CONTEXT,
    ENOUGH,
    FASTEST,
    FIXED,
    FORGOTTEN,
    PER_TOKEN,
    REFRESH,
    SAMPLES,
    PrefillRates,
)

MACHINE = PrefillRate(per_token=36e-6, fixed=0.005, context=3.3e-5)


def observe(rates: PrefillRates, worker: str, machine: PrefillRate, random: Random, number: int = SAMPLES) -> None:
    for _ in range(number):
        uncached, cached = random.randint(100, 30_000), random.randint(0, 60_000)
        rates.observe(worker, machine.seconds(uncached, cached), pending=0, uncached=uncached, cached=cached)


def test_exact_samples_give_the_machines_figures() -> None:
    rates = PrefillRates()
    observe(rates, "a", MACHINE, Random(1), 2 * SAMPLES)
    learned = rates.rate("a")
    assert learned is not None
    assert learned.per_token == pytest.approx(MACHINE.per_token, rel=0.02)
    assert learned.fixed == pytest.approx(MACHINE.fixed, rel=0.2)
    assert learned.context == pytest.approx(MACHINE.context, rel=0.05)


def test_a_tenth_of_wild_samples_changes_little() -> None:
    rates, random = PrefillRates(), Random(2)
    for _ in range(2 * SAMPLES):
        observe(rates, "a", MACHINE, random, 1)
        if random.random() < 0.1:
            wrong = random.choice((1e-6, 100.0))
            rates.observe("a", wrong, pending=0, uncached=random.randint(100, 30_000), cached=0)
    learned = rates.rate("a")
    assert learned is not None
    for tokens in (500, 5_000, 30_000):
        assert learned.seconds(tokens, 10_000) == pytest.approx(MACHINE.seconds(tokens, 10_000), rel=0.2)


def test_prompts_of_one_length_give_a_rate_without_a_fixed_part() -> None:
    rates = PrefillRates()
    for _ in range(ENOUGH + REFRESH):
        rates.observe("a", 0.1, pending=0, uncached=1000, cached=0)
    assert rates.rate("a") == PrefillRate(1e-4, 0.0, 0.0)


def test_prompts_too_short_to_tell_give_none() -> None:
    rates = PrefillRates()
    for _ in range(2 * SAMPLES):
        rates.observe("a", 0.02, pending=0, uncached=20, cached=4000)
    assert rates.rate("a") is None


def test_few_samples_give_none() -> None:
    rates = PrefillRates()
    observe(rates, "a", MACHINE, Random(3), ENOUGH - 1)
    assert rates.rate("a") is None
    assert rates.rate("never seen") is None


def test_prompts_behind_a_queue_are_no_samples() -> None:
    rates = PrefillRates()
    for _ in range(2 * SAMPLES):
        rates.observe("a", 30.0, pending=50_000, uncached=1000, cached=0)
    assert rates.rate("a") is None


def test_a_slow_worker_is_told_apart_and_equal_ones_are_not() -> None:
    rates, random = PrefillRates(), Random(4)
    slow = PrefillRate(3 * MACHINE.per_token, MACHINE.fixed, MACHINE.context)
    nearly = PrefillRate(1.1 * MACHINE.per_token, MACHINE.fixed, MACHINE.context)
    for _ in range(2 * SAMPLES):
        for worker, machine in (("a", MACHINE), ("b", nearly), ("c", MACHINE), ("slow", slow)):
            observe(rates, worker, machine, random, 1)
    assert rates.rate("a") == rates.rate("b") == rates.rate("c")
    slowest, usual = rates.rate("slow"), rates.rate("a")
    assert slowest is not None
    assert usual is not None
    assert slowest.per_token == pytest.approx(3 * usual.per_token, rel=0.15)


@pytest.mark.parametrize(("shortest", "longest", "noise"), [(800, 1500, 0.02), (800, 1500, 0.05), (3000, 4000, 0.1)])
@pytest.mark.parametrize("seed", range(3))
def test_equal_workers_stay_equal_where_prompts_are_alike_and_replies_noisy(
    shortest: int, longest: int, noise: float, seed: int
) -> None:
    """Slopes are noise then: taken at their word they made one of eight such workers look a hundred times as fast."""
    rates, random = PrefillRates(), Random(seed)
    workers = [f"w{number}" for number in range(8)]
    for _ in range(2 * SAMPLES):
        for worker in workers:
            uncached = random.randint(shortest, longest)
            seconds = MACHINE.seconds(uncached, 0) + random.expovariate(1 / noise)
            rates.observe(worker, seconds, pending=0, uncached=uncached, cached=0)
    learned = [rates.rate(worker) for worker in workers]
    for tokens in ((shortest + longest) // 2, 50_000):
        seconds_each = [rate.seconds(tokens, 0) for rate in learned if rate is not None]
        assert len(seconds_each) == 8
        assert max(seconds_each) < 1.3 * min(seconds_each)


def test_a_worker_whose_replies_are_errors_at_once_is_not_taken_to_be_that_fast() -> None:
    rates, random = PrefillRates(), Random(6)
    for _ in range(2 * SAMPLES):
        for worker in ("a", "b", "c"):
            observe(rates, worker, MACHINE, random, 1)
        rates.observe("failing", 0.001, pending=0, uncached=random.randint(100, 30_000), cached=0)
    failing, usual = rates.rate("failing"), rates.rate("a")
    assert failing is not None
    assert usual is not None
    assert failing.per_token >= usual.per_token / FASTEST


def test_a_rate_that_nothing_confirms_any_more_is_forgotten() -> None:
    rates, random = PrefillRates(), Random(7)
    slow = PrefillRate(50 * MACHINE.per_token, MACHINE.fixed, MACHINE.context)
    for _ in range(SAMPLES):
        observe(rates, "a", MACHINE, random, 1)
        observe(rates, "slow", slow, random, 1)
    assert rates.rate("slow") is not None
    observe(rates, "a", MACHINE, random, 2 * FORGOTTEN * SAMPLES - REFRESH)
    assert rates.rate("slow") is not None
    observe(rates, "a", MACHINE, random, 2 * REFRESH)
    assert rates.rate("slow") is None
    assert rates.rate("a") is not None


def test_a_rate_follows_a_change_and_goes_with_its_worker() -> None:
    rates, random = PrefillRates(), Random(5)
    observe(rates, "a", MACHINE, random, 2 * SAMPLES)
    slow = PrefillRate(4 * MACHINE.per_token, MACHINE.fixed, MACHINE.context)
    observe(rates, "a", slow, random, 2 * SAMPLES)
    learned = rates.rate("a")
    assert learned is not None
    assert learned.per_token == pytest.approx(slow.per_token, rel=0.05)
    rates.forget("a")
    assert rates.rate("a") is None


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e7), st.floats(0, 1e7)), max_size=SAMPLES * 2
    )
)
def test_whatever_comes_rates_stay_within_their_bounds(samples: list[tuple[float, float, float, float]]) -> None:
    rates = PrefillRates()
    for seconds, pending, uncached, cached in samples:
        rates.observe("a", seconds, pending=pending, uncached=uncached, cached=cached)
    rate = rates.rate("a")
    if rate is not None:
        assert PER_TOKEN[0] <= rate.per_token <= PER_TOKEN[1]
        assert FIXED[0] <= rate.fixed <= FIXED[1]
        assert CONTEXT[0] <= rate.context <= CONTEXT[1]
