"""The default policy: its formula, and what it does without facts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies.facts import CandidateFacts
from gateway.routing.policies.warm import POLICY
from tests.gateway.routing.policies.support import SLOW, WEIGHTS, candidates, request, winner

WARM = POLICY.choose


def test_the_formula() -> None:
    worker = CandidateFacts("a", 512, 128, reserved_tokens=1000, reported_waiting_tokens=700, in_flight=2)
    (terms,) = WARM(request(2000), [worker], WEIGHTS, Random(0)).terms
    uncached = 2000 - (512 - 0.25 * 128)
    assert terms.uncached_tokens == uncached
    assert terms.pending_tokens == 1000
    assert terms.decode == 100 * 2
    assert terms.cost == 1000 + (1 + 3 + 0.2 * 2) * uncached + 100 * 2


def test_the_cache_decides_between_equal_loads() -> None:
    assert winner(WARM, 1000, CandidateFacts("cold"), CandidateFacts("warm", 900)) == "warm"


def test_a_loaded_holder_loses_to_an_idle_worker() -> None:
    holder = CandidateFacts("holder", 900, reserved_tokens=50_000, in_flight=10)
    assert winner(WARM, 1000, holder, CandidateFacts("idle")) == "idle"


def test_a_long_cold_prompt_avoids_the_worker_full_of_short_ones() -> None:
    assert winner(WARM, 32_000, CandidateFacts("full", in_flight=30), CandidateFacts("half", in_flight=15)) == "half"


def test_a_missing_report_takes_the_median_and_is_never_best_for_want_of_facts() -> None:
    unknown = CandidateFacts("unknown")
    others = [
        CandidateFacts(name, reported_waiting_tokens=tokens) for name, tokens in [("a", 10), ("b", 500), ("c", 900)]
    ]
    decision = WARM(request(1000), [unknown, *others], WEIGHTS, Random(0))
    assert decision.terms[0].pending_tokens == 500
    assert winner(WARM, 1000, unknown, *others) == "a"


def test_reports_of_all_missing_leave_reservations() -> None:
    busy, idle = CandidateFacts("busy", reserved_tokens=100), CandidateFacts("idle")
    assert winner(WARM, 10, busy, idle) == "idle"


def test_an_unknown_prompt_goes_by_load() -> None:
    busy, idle = CandidateFacts("busy", 4000, in_flight=3), CandidateFacts("idle")
    assert winner(WARM, 0, busy, idle) == "idle"
    assert (
        winner(WARM, 0, CandidateFacts("a", in_flight=1), CandidateFacts("b", reserved_tokens=5000, in_flight=1)) == "a"
    )


def test_ties_break_at_random() -> None:
    workers = [CandidateFacts(name) for name in "abc"]
    assert {winner(WARM, 100, *workers, seed=seed) for seed in range(50)} == {"a", "b", "c"}


@given(workers=candidates, tokens=st.integers(1, 100_000), extra=st.integers(0, 100_000))
def test_a_term_without_spread_does_not_decide(workers: list[CandidateFacts], tokens: int, extra: int) -> None:
    """The same load added to every worker changes no pick, in tokens or in seconds of one rate."""
    for rate in (None, SLOW):
        known = [replace(worker, reported_waiting_tokens=None, rate=rate) for worker in workers]
        loaded = [replace(worker, reserved_tokens=worker.reserved_tokens + extra) for worker in known]
        before = WARM(request(tokens), known, WEIGHTS, Random(1))
        after = WARM(request(tokens), loaded, WEIGHTS, Random(1))
        assert before.winner == after.winner or before.terms[after.winner].cost == pytest.approx(
            before.terms[before.winner].cost
        )
