"""Policies: pure functions, checked on the contracts that routing rests on."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies.facts import CandidateFacts, PrefillRate, RequestFacts
from gateway.routing.policies.registry import POLICIES
from warmroute.config.pool import Weights

WEIGHTS = Weights()
WARM = POLICIES["warm"].choose

candidates = st.lists(
    st.builds(
        CandidateFacts,
        worker=st.text("abcdef", min_size=1, max_size=6),
        matched_tokens=st.integers(0, 4096),
        reserved_tokens=st.integers(0, 100_000),
        reported_waiting_tokens=st.none() | st.integers(0, 100_000),
        in_flight=st.integers(0, 200),
        kv_use=st.none() | st.floats(0, 1),
        kv_capacity_tokens=st.sampled_from([0, 100_000]),
        rate=st.none() | st.builds(PrefillRate, st.floats(1e-6, 1e-2), st.floats(0, 1), st.floats(0, 1e-4)),
    ),
    min_size=1,
    max_size=12,
)


FAST, SLOW = PrefillRate(1e-5), PrefillRate(1e-4)


def request(tokens: int, sequence: int = 0, affinity: int = 0) -> RequestFacts:
    return RequestFacts(sequence, tokens, affinity)


def winner(policy, tokens: int, *workers: CandidateFacts, sequence: int = 0, seed: int = 0) -> str:
    decision = policy(request(tokens, sequence), workers, WEIGHTS, Random(seed))
    return workers[decision.winner].worker


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


def test_round_robin_takes_turns_by_name_whatever_the_order() -> None:
    workers = [CandidateFacts(name) for name in "cab"]
    policy = POLICIES["round_robin"].choose
    assert [winner(policy, 10, *workers, sequence=turn) for turn in range(4)] == ["a", "b", "c", "a"]


def test_least_requests() -> None:
    workers = [CandidateFacts("a", 999, in_flight=2), CandidateFacts("b", in_flight=1)]
    assert winner(POLICIES["least_requests"].choose, 1000, *workers) == "b"


def test_power_of_two_takes_the_less_loaded_of_two_and_never_the_worst_of_all() -> None:
    workers = [CandidateFacts(name, in_flight=load) for load, name in enumerate("abcd")]
    picks = [winner(POLICIES["power_of_two"].choose, 10, *workers, seed=seed) for seed in range(200)]
    assert set(picks) == {"a", "b", "c"}
    assert picks.count("a") > picks.count("b") > picks.count("c")


def test_consistent_hash_keeps_alike_prompts_together_and_spreads_others() -> None:
    policy, workers = POLICIES["consistent_hash"].choose, [CandidateFacts(name) for name in "abcdefgh"]

    def pick(affinity: int, candidates: list[CandidateFacts]) -> str:
        return candidates[policy(request(10, affinity=affinity), candidates, WEIGHTS, Random(0)).winner].worker

    homes = {affinity: pick(affinity, workers) for affinity in range(1, 400)}
    assert all(pick(affinity, workers[::-1]) == home for affinity, home in homes.items())
    assert set(homes.values()) == set("abcdefgh")
    # One worker fewer moves its own requests alone.
    without = [worker for worker in workers if worker.worker != "c"]
    assert all(pick(affinity, without) == home for affinity, home in homes.items() if home != "c")


def test_consistent_hash_bounds_the_load_of_a_home() -> None:
    policy, names = POLICIES["consistent_hash"].choose, "abcd"
    load = dict.fromkeys(names, 0)
    for _ in range(100):
        workers = [CandidateFacts(name, in_flight=load[name]) for name in names]
        load[workers[policy(request(10, affinity=77), workers, WEIGHTS, Random(0)).winner].worker] += 1
    assert max(load.values()) <= 1.25 * 100 / 4 + 1
    assert sum(load.values()) == 100


def test_prefix_only_follows_the_longest_match_into_any_queue() -> None:
    holder = CandidateFacts("holder", 900, reserved_tokens=10**6, in_flight=500)
    assert winner(POLICIES["prefix_only"].choose, 1000, holder, CandidateFacts("other", 899)) == "holder"


def test_lmetric_multiplies_work_and_batch() -> None:
    few, many = CandidateFacts("few", 0, in_flight=1), CandidateFacts("many", 700, in_flight=9)
    decision = POLICIES["lmetric"].choose(request(1000), [few, many], WEIGHTS, Random(0))
    assert [term.cost for term in decision.terms] == [1000 * 2, 300 * 10]
    assert decision.winner == 0


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


@pytest.mark.parametrize("name", POLICIES)
@given(workers=candidates, tokens=st.integers(0, 100_000), seed=st.integers(0, 9), affinity=st.integers(0, 2**64 - 1))
def test_every_policy_explains_every_candidate_and_repeats_itself(
    name: str, workers: list[CandidateFacts], tokens: int, seed: int, affinity: int
) -> None:
    facts = request(tokens, seed, affinity)
    untouched = [replace(worker) for worker in workers]
    first = POLICIES[name].choose(facts, workers, WEIGHTS, Random(seed))
    again = POLICIES[name].choose(facts, workers, WEIGHTS, Random(seed))
    assert first == again
    assert workers == untouched
    assert [term.worker for term in first.terms] == [worker.worker for worker in workers]
    assert first.terms[first.winner].cost == min(term.cost for term in first.terms)
    assert all(math.isfinite(term.cost) and term.work_tokens >= 0 for term in first.terms)


@pytest.mark.parametrize("name", ["warm", "least_requests", "prefix_only", "lmetric"])
def test_every_policy_breaks_ties_at_random(name: str) -> None:
    workers = [CandidateFacts(name, 64, 0, 500, 700, 3, 0.5, 1000) for name in "abc"]
    assert {winner(POLICIES[name].choose, 1000, *workers, seed=seed) for seed in range(50)} == {"a", "b", "c"}


@pytest.mark.parametrize("name", ["warm", "lmetric"])
@given(
    workers=candidates.filter(lambda workers: len(workers) > 1), tokens=st.integers(1, 100_000), late=st.integers(0, 11)
)
def test_what_is_unknown_is_the_median_of_the_others(
    name: str, workers: list[CandidateFacts], tokens: int, late: int
) -> None:
    late %= len(workers)
    workers = [replace(worker, reported_waiting_tokens=worker.reported_waiting_tokens or 0) for worker in workers]
    workers[late] = replace(workers[late], reported_waiting_tokens=None)
    others = [worker.reported_waiting_tokens for worker in workers if worker.reported_waiting_tokens is not None]
    term = POLICIES[name].choose(request(tokens), workers, WEIGHTS, Random(0)).terms[late]
    assert term.pending_tokens == max(median(others), workers[late].reserved_tokens)


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


@given(workers=candidates, tokens=st.integers(1, 100_000), use=st.floats(0, 1))
def test_equal_memory_does_not_decide(workers: list[CandidateFacts], tokens: int, use: float) -> None:
    without = [replace(worker, kv_use=None, rate=None) for worker in workers]
    alike = [replace(worker, kv_use=use, kv_capacity_tokens=100_000) for worker in without]
    before = WARM(request(tokens), without, WEIGHTS, Random(1))
    after = WARM(request(tokens), alike, WEIGHTS, Random(1))
    assert before.terms[after.winner].cost == pytest.approx(before.terms[before.winner].cost, abs=1e-6)


@given(workers=candidates, tokens=st.integers(1, 100_000), factor=st.floats(0.1, 10))
def test_seconds_of_equal_workers_without_context_decide_as_tokens_do(
    workers: list[CandidateFacts], tokens: int, factor: float
) -> None:
    in_tokens = WARM(request(tokens), [replace(worker, rate=None) for worker in workers], WEIGHTS, Random(1))
    rate = PrefillRate(1e-5 * factor)
    in_seconds = WARM(request(tokens), [replace(worker, rate=rate) for worker in workers], WEIGHTS, Random(1))
    assert in_tokens.terms[in_seconds.winner].cost == pytest.approx(in_tokens.terms[in_tokens.winner].cost)
