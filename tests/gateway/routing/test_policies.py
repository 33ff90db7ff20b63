"""Policies: pure functions, checked on the contracts that routing rests on."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.facts import CandidateFacts, RequestFacts
from gateway.routing.policies import POLICIES
from warmroute.config import Weights

WEIGHTS = Weights()
WARM = POLICIES["warm"]

candidates = st.lists(
    st.builds(
        CandidateFacts,
        worker=st.text("abcdef", min_size=1, max_size=6),
        matched_tokens=st.integers(0, 4096),
        reserved_tokens=st.integers(0, 100_000),
        reported_waiting_tokens=st.none() | st.integers(0, 100_000),
        in_flight=st.integers(0, 200),
    ),
    min_size=1,
    max_size=12,
)


def request(tokens: int, sequence: int = 0) -> RequestFacts:
    return RequestFacts(sequence, tokens)


def winner(policy, tokens: int, *workers: CandidateFacts, sequence: int = 0, seed: int = 0) -> str:
    decision = policy(request(tokens, sequence), workers, WEIGHTS, Random(seed))
    return workers[decision.winner].worker


def test_the_formula() -> None:
    worker = CandidateFacts("a", 512, 128, reserved_tokens=1000, reported_waiting_tokens=700, in_flight=2)
    (terms,) = WARM(request(2000), [worker], WEIGHTS, Random(0)).terms
    uncached = 2000 - (512 - 0.25 * 128)
    assert terms.uncached_tokens == uncached
    assert terms.pending_tokens == 1000
    assert terms.cost == 1000 + (1 + 3 + 0.3 * 2) * uncached


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


def test_round_robin_takes_turns_by_name_whatever_the_order() -> None:
    workers = [CandidateFacts(name) for name in "cab"]
    policy = POLICIES["round_robin"]
    assert [winner(policy, 10, *workers, sequence=turn) for turn in range(4)] == ["a", "b", "c", "a"]


def test_least_requests() -> None:
    workers = [CandidateFacts("a", 999, in_flight=2), CandidateFacts("b", in_flight=1)]
    assert winner(POLICIES["least_requests"], 1000, *workers) == "b"


@pytest.mark.parametrize("name", POLICIES)
@given(workers=candidates, tokens=st.integers(0, 100_000), seed=st.integers(0, 9))
def test_every_policy_explains_every_candidate_and_repeats_itself(
    name: str, workers: list[CandidateFacts], tokens: int, seed: int
) -> None:
    first = POLICIES[name](request(tokens), workers, WEIGHTS, Random(seed))
    again = POLICIES[name](request(tokens), workers, WEIGHTS, Random(seed))
    assert first == again
    assert [term.worker for term in first.terms] == [worker.worker for worker in workers]
    assert first.terms[first.winner].cost == min(term.cost for term in first.terms)


@given(workers=candidates, tokens=st.integers(1, 100_000), extra=st.integers(0, 100_000))
def test_a_term_without_spread_does_not_decide(workers: list[CandidateFacts], tokens: int, extra: int) -> None:
    """The same load added to every worker changes no pick."""
    known = [replace(worker, reported_waiting_tokens=None) for worker in workers]
    loaded = [replace(worker, reserved_tokens=worker.reserved_tokens + extra) for worker in known]
    before = WARM(request(tokens), known, WEIGHTS, Random(1))
    after = WARM(request(tokens), loaded, WEIGHTS, Random(1))
    assert before.winner == after.winner or before.terms[after.winner].cost == pytest.approx(
        before.terms[before.winner].cost
    )
