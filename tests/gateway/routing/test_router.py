"""A pool's routing with the real mirror, on a clock of the test's own."""

from __future__ import annotations

from collections import Counter

from gateway.http.outcome import Outcome
from gateway.prompts.keyer import Prompt
from gateway.routing.routed_request import PoolAssignment
from indexer.keys import prompt_keys
from tests.gateway.routing.support import FINGERPRINT, NAMES, Pool, open_assignments, prompt


def test_the_holder_gets_the_request_and_the_match_is_capped() -> None:
    pool = Pool()
    whole = prompt(640)
    pool.hold("c", whole.keys)
    assignment = pool.assign(whole)
    assert assignment.worker_id == "c"
    # The engine computes at least the last token, so it reuses one 16-token block less.
    assert assignment.matched_tokens == 624
    assert (b"x-warmroute-matched-tokens", b"624") in assignment.reply_headers


def test_of_an_engine_block_that_is_held_in_part_nothing_counts() -> None:
    """Two prompts may part within an engine's block: index blocks before that place are the same, the block is not."""
    pool = Pool()
    pool.hold("c", prompt(640).keys[:5], engine_block_tokens=128)
    assert pool.assign(prompt(640)).matched_tokens == 256


def test_two_requests_in_one_turn_see_each_other() -> None:
    pool = Pool()
    with open_assignments(pool, [prompt(1000, 10_000 * number) for number in range(4)]) as assignments:
        assert {assignment.worker_id for assignment in assignments} == set(NAMES)


def test_long_prompts_with_short_replies_spread() -> None:
    pool = Pool()
    with open_assignments(pool, [prompt(32_000, 100_000 * number) for number in range(16)]) as assignments:
        assert set(Counter(assignment.worker_id for assignment in assignments).values()) == {4}


def test_siblings_of_a_new_prefix_stay_together_until_the_load_bound() -> None:
    pool = Pool()
    shared = list(range(6016))
    prompts = [Prompt(6080, prompt_keys([*shared, *range(n * 1000, n * 1000 + 64)], FINGERPRINT)) for n in range(1, 41)]
    with open_assignments(pool, prompts) as assignments:
        counts = Counter(assignment.worker_id for assignment in assignments)
        first = assignments[0].worker_id
        assert [assignment.worker_id for assignment in assignments[:5]] == [first] * 5
        assert counts[first] >= len(prompts) / len(NAMES)
        # Few copies of the prefix are computed: less work than a copy on every request, by far.
        uncached = sum(6080 - assignment.matched_tokens for assignment in assignments)
        assert uncached < 0.3 * 6080 * len(prompts)


def test_identical_prompts_at_one_instant_share_by_load() -> None:
    pool = Pool()
    with open_assignments(pool, [prompt(64)] * 40) as assignments:
        counts = Counter(assignment.worker_id for assignment in assignments)
        assert set(counts) == set(NAMES)
        assert max(counts.values()) <= 20


def test_a_late_worker_is_judged_by_predictions_and_the_median_report() -> None:
    pool = Pool()
    whole = prompt(640)
    pool.hold("a", whole.keys)
    for name, waiting in zip(NAMES, (0, 100, 200, 300), strict=True):
        pool.report(name, waiting)
    pool.index.late = frozenset({"a"})
    choice = pool.router.choose(whole)
    late = choice.decision.terms[0]
    assert (late.worker, late.matched_tokens, late.pending_tokens) == ("a", 0, 200)
    assert choice.worker.name == "b"


def test_a_stale_report_counts_as_none() -> None:
    pool = Pool()
    for name, waiting in zip(NAMES, (0, 100, 200, 300), strict=True):
        pool.report(name, waiting, age=5.0 if name == "a" else 0.0)
    assert pool.router.choose(prompt(64)).decision.terms[0].pending_tokens == 200


def test_reports_of_all_late_and_one_worker_keep_serving() -> None:
    pool = Pool(("a",))
    pool.report("a", 5000, age=60)
    pool.index.late = frozenset({"a"})
    assert pool.assign(prompt(64)).worker_id == "a"


def test_an_empty_prompt_matches_nothing() -> None:
    assert Pool().assign(Prompt(0, [])).matched_tokens == 0


def test_a_prompt_without_keys_books_its_estimate_and_goes_by_load() -> None:
    pool = Pool(("a", "b"))
    first = pool.assign(Prompt(5000, []))
    assert pool.router.state.reservations.of(first.worker_id).pending_tokens == 5000
    assert pool.assign(prompt(640)).worker_id != first.worker_id


def test_one_decision_reads_the_clock_once() -> None:
    pool = Pool(tuple(f"w{number}" for number in range(1000)))
    calls = 0

    def clock() -> float:
        nonlocal calls
        calls += 1
        return 1.0

    pool.router.clock = clock
    assert pool.router.choose(prompt(6400)) is not None
    assert calls == 1


def test_a_worker_that_fails_fast_draws_no_extra_traffic() -> None:
    """One of four workers fails at once, always or half the time; the others take a while for each reply."""
    for pattern in ([True], [True, False]):
        pool = Pool()
        busy: list[PoolAssignment] = []
        asked = dict.fromkeys(NAMES, 0)
        for number in range(2000):
            pool.now += 0.01
            assignment = pool.assign(prompt(64, start=number * 64))
            asked[assignment.worker_id] += 1
            assignment.first_byte()
            if assignment.worker_id == "a":
                failed = pattern[asked["a"] % len(pattern)]
                assignment.close(Outcome.SERVER_ERROR if failed else Outcome.COMPLETED)
            else:
                busy.append(assignment)
            if len(busy) > 24:
                busy.pop(0).close(Outcome.COMPLETED)
        assert asked["a"] < 2000 / 4 / 4


def test_workers_that_are_all_new_start_at_once() -> None:
    pool = Pool(policy="round_robin")
    pool.now = 1.0
    assert {pool.assign(None).worker_id for _ in range(4)} == set(NAMES)
