"""What an uncached token costs beside itself, and the wait for a slot."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gateway.routing.policies.facts import CandidateFacts, PrefillRate, RequestFacts
from gateway.routing.policies.prices import (
    LEAST_PRICE,
    MOST_PRICE,
    UNSEEN_EVICTION,
    USUAL_TOKENS_PER_SECOND,
    eviction_prices,
    queued_price,
    slot_wait_seconds,
)
from gateway.routing.policies.warm import POLICY
from tests.gateway.routing.policies.support import WEIGHTS
from warmroute.config.pool import Weights

ASKED = RequestFacts(0, 4000, stay_seconds=2.0, usual_work_tokens=1000.0)


def costs(*workers: CandidateFacts, weights: Weights = WEIGHTS) -> list[float]:
    return [terms.cost for terms in POLICY.choose(ASKED, workers, weights, Random(0)).terms]


def test_nothing_is_queued_while_one_worker_is_free() -> None:
    busy = CandidateFacts("busy", reported_waiting_tokens=3000)
    assert queued_price(ASKED, [busy, CandidateFacts("free")], 0.0) == 0
    assert queued_price(ASKED, [busy, replace(busy, reported_waiting_tokens=500)], 0.0) == pytest.approx(4 * 0.5)
    assert queued_price(ASKED, [busy, busy], 0.0) == pytest.approx(MOST_PRICE)


def test_a_worker_without_a_report_waits_as_the_others_and_what_is_usual_must_be_known() -> None:
    silent = CandidateFacts("silent", reserved_tokens=100)
    assert queued_price(ASKED, [silent], 700.0) == pytest.approx(4 * 0.7)
    assert queued_price(replace(ASKED, usual_work_tokens=0.0), [silent], 700.0) == 0


def test_a_queue_for_slots_is_none_for_prefill() -> None:
    full = CandidateFacts("full", reported_waiting_tokens=3000, in_flight=8, slots=8)
    assert queued_price(ASKED, [full, replace(full, slots=0)], 0.0) == 0


def test_an_eviction_costs_what_is_measured_within_bounds() -> None:
    """2 (1 + 0.2 * 10) = 6 times what is measured, at a mean of ten requests in flight."""
    worker = CandidateFacts("a", in_flight=10)
    workers = [replace(worker, eviction=measured) for measured in (0.5, 0.0, 19.0, None)]
    assert eviction_prices(workers, None, 0.2) == [LEAST_PRICE + 3, LEAST_PRICE, MOST_PRICE, UNSEEN_EVICTION]
    assert eviction_prices(workers, 1.5, 0.2) == [1.5] * 4


def test_the_wait_for_a_slot_is_that_for_the_ends_ahead() -> None:
    worker = CandidateFacts("a", in_flight=7, slots=8)
    assert slot_wait_seconds(worker, 2.0) == 0
    assert slot_wait_seconds(replace(worker, in_flight=8), 2.0) == pytest.approx(2 / 8)
    assert slot_wait_seconds(replace(worker, in_flight=16), 2.0) == pytest.approx(9 * 2 / 8)


@pytest.mark.parametrize("rate", [None, PrefillRate(1e-4)])
def test_a_full_warm_worker_loses_to_an_idle_cold_one_by_the_wait(rate: PrefillRate | None) -> None:
    warm = CandidateFacts("warm", 3900, in_flight=24, slots=8, eviction=0.0, rate=rate)
    cold = CandidateFacts("cold", eviction=0.0, rate=rate)
    full, idle = costs(warm, cold)
    assert full > idle
    without, _ = costs(replace(warm, slots=0), cold)
    assert without < idle
    wait = (24 + 1 - 8) / 8 * 2.0 * (USUAL_TOKENS_PER_SECOND if rate is None else 1)
    assert full - without == pytest.approx(wait)
