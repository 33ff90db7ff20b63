"""What a router learns from replies: how fast its workers are, and what those that say nothing hold."""

from __future__ import annotations

from gateway.http.outcome import Outcome
from gateway.prompts.keyer import Prompt
from gateway.routing.candidates import Constraints
from gateway.routing.census.targets import Target
from gateway.routing.gauges import publish_gauges
from gateway.routing.routed_request import PoolAssignment, RoutedRequest
from gateway.routing.state.rates import SAMPLES
from tests.gateway.routing.support import FINGERPRINT, Pool, prompt
from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS

SLOW_SECONDS_A_TOKEN, FAST_SECONDS_A_TOKEN = 1e-3, 1e-4


def assign(pool: Pool, asked: Prompt, only: str | None = None) -> PoolAssignment:
    assignment = RoutedRequest(pool.router, asked, Constraints(only=only)).assign(frozenset())
    assert assignment is not None
    return assignment


def answer(
    pool: Pool,
    assignment: PoolAssignment,
    seconds: float,
    outcome: Outcome = Outcome.COMPLETED,
    *,
    streamed: bool = True,
) -> None:
    pool.now += seconds
    assignment.first_byte(streamed=streamed)
    pool.now += 0.1
    assignment.close(outcome)
    pool.now += 5


def teach(pool: Pool, *, streamed: bool = True, outcome: Outcome = Outcome.COMPLETED) -> None:
    """Two workers answer prompts never seen before, the one ten times as fast as the other."""
    for number in range(SAMPLES):
        for name, rate in (("slow", SLOW_SECONDS_A_TOKEN), ("fast", FAST_SECONDS_A_TOKEN)):
            tokens = 600 + 13 * number
            asked = prompt(tokens, 10_000 * (number + 1) + (name == "slow"))
            answer(pool, assign(pool, asked, name), rate * tokens, outcome, streamed=streamed)


def test_streamed_replies_teach_the_rates_and_routing_counts_in_seconds() -> None:
    pool = Pool(("slow", "fast"))
    asked = prompt(1024)
    pool.hold("slow", asked.keys[:8])
    cold = assign(pool, asked)
    assert cold.worker_id == "slow"
    answer(pool, cold, 1.0)
    teach(pool)
    choice = pool.router.choose(asked)
    assert choice is not None
    assert choice.decision.unit == "seconds"
    assert choice.worker.name == "fast"
    publish_gauges(pool.router)
    assert pool.metric("warmroute_gateway_rated_workers", pool="p") == 2
    assert pool.metric("warmroute_gateway_approximate_workers", pool="p") == 0
    slow, fast = pool.router.state.rates.rate("slow"), pool.router.state.rates.rate("fast")
    assert slow is not None
    assert fast is not None
    assert 8 < slow.per_token / fast.per_token < 12


def test_replies_that_are_not_streamed_or_were_no_completions_teach_nothing() -> None:
    for arguments in ({"streamed": False}, {"outcome": Outcome.REFUSED}, {"outcome": Outcome.BROKEN}):
        pool = Pool(("slow", "fast"))
        teach(pool, **arguments)
        assert pool.router.state.rates.rate("fast") is None


def test_a_pool_can_keep_its_cost_in_tokens() -> None:
    pool = Pool(("slow", "fast"), cost="tokens")
    teach(pool)
    choice = pool.router.choose(prompt(1024))
    assert choice is not None
    assert choice.decision.unit == "tokens"


def test_bookings_take_work_and_give_all_of_it_back() -> None:
    pool = Pool(("slow", "fast"))
    teach(pool)
    assignment = assign(pool, prompt(2000, 5_000_000))
    booked = pool.router.state.reservations.of(assignment.worker_id)
    assert booked.pending_tokens >= 2000
    answer(pool, assignment, 1.0)
    assert pool.router.state.reservations.workers == frozenset()


def test_a_worker_that_leaves_takes_its_rate_along() -> None:
    pool = Pool(("slow", "fast"))
    teach(pool)
    pool.targets([Target("fast", "10.0.0.1", 8001, worker_id="fast")])
    assert pool.router.state.rates.rate("slow") is None
    assert pool.router.state.rates.rate("fast") is not None


def test_a_worker_without_events_is_taken_to_hold_what_it_computed() -> None:
    pool = Pool(("a", "b"))
    pool.hold("a", [], publishes_events=False, capacity={"device": 100})
    pool.hold("b", [])
    asked = prompt(640)
    answer(pool, assign(pool, asked, "a"), 1.0)
    answer(pool, assign(pool, asked, "b"), 1.0)
    # b says what it holds, and has said nothing of this.
    choice = pool.router.choose(asked)
    assert choice is not None
    assert {terms.worker: terms.matched_tokens for terms in choice.decision.terms} == {"a": 624, "b": 0}
    assert choice.worker.name == "a"
    assert pool.router.census.current().approximate == 1


def test_what_is_taken_to_be_held_is_bounded_by_the_workers_capacity() -> None:
    pool = Pool(("a",))
    pool.hold("a", [], publishes_events=False, capacity={"device": 12})
    first, second = prompt(640), prompt(640, 1_000_000)
    for asked in (first, second):
        answer(pool, assign(pool, asked), 1.0)
    matched = []
    for asked in (first, second):
        choice = pool.router.choose(asked)
        assert choice is not None
        matched.append(choice.terms.matched_tokens)
    assert matched == [128, 624]


def test_workers_that_never_said_hello_are_keyed_as_they_would_key() -> None:
    pool = Pool(())
    pool.targets([Target(name, "10.0.0.1", 8000 + place) for place, name in enumerate("ab")])
    space = pool.router.census.current().space
    assert space is not None
    assert (space.fingerprint, space.index_block_tokens) == (FINGERPRINT, DEFAULT_INDEX_BLOCK_TOKENS)
    asked = prompt(640)
    first = assign(pool, asked)
    answer(pool, first, 1.0)
    for _ in range(5):
        again = assign(pool, asked)
        assert again.worker_id == first.worker_id
        assert again.matched_tokens == 639
        answer(pool, again, 0.1)
    pool.targets([])
    assert len(pool.router.state.approximate) == 0


def test_a_full_kv_cache_turns_requests_away() -> None:
    pool = Pool(("full", "free"))
    asked = prompt(1024)
    pool.hold("full", asked.keys[:4], capacity={"device": 1000})
    pool.hold("free", [], capacity={"device": 1000})
    assert assign(pool, asked).worker_id == "full"
    pool.now += 100
    pool.report("full", 0, kv_use=0.97)
    pool.report("free", 0, kv_use=0.1)
    choice = pool.router.choose(asked)
    assert choice is not None
    assert choice.worker.name == "free"
