"""What a request books and expects on its way, and gives back at its end."""

from __future__ import annotations

from gateway.http.outcome import Outcome
from gateway.routing.routed_request import RoutedRequest
from tests.gateway.routing.support import NAMES, Pool, open_assignments, prompt


def test_predictions_go_when_a_request_fails_and_stay_when_it_answers() -> None:
    pool = Pool()
    failed = pool.assign(prompt(640))
    assert pool.router.state.predictions.keys == 10
    failed.close(Outcome.UNREACHABLE)
    assert pool.router.state.predictions.keys == 0
    answered = pool.assign(prompt(640))
    answered.first_byte()
    answered.close(Outcome.COMPLETED)
    assert pool.assign(prompt(640)).matched_tokens == 624
    broken = pool.assign(prompt(640, 5000))
    broken.first_byte()
    broken.close(Outcome.BROKEN)
    assert pool.router.state.predictions.match(prompt(640, 5000).keys) == {}


def test_the_prefill_part_is_freed_at_the_first_byte() -> None:
    pool = Pool(("a",))
    assignment = pool.assign(prompt(640))
    assert pool.router.state.reservations.of("a").pending_tokens == 640
    assignment.first_byte()
    assert pool.router.state.reservations.of("a").pending_tokens == 0
    assert pool.router.state.reservations.of("a").requests == 1
    assignment.close(Outcome.COMPLETED)


def test_a_refused_request_leaves_no_prediction() -> None:
    pool = Pool()
    refused = pool.assign(prompt(640))
    refused.first_byte()
    refused.close(Outcome.REFUSED)
    assert pool.router.state.predictions.keys == 0


def test_a_worker_that_is_gone_leaves_no_series_behind() -> None:
    pool = Pool(("a", "b"))
    assignment = pool.assign(prompt(64))
    pool.targets([])
    assignment.close(Outcome.COMPLETED)
    name = "warmroute_gateway_worker_requests_total"
    assert pool.metric(name, pool="p", worker=assignment.worker_id, outcome="completed") is None


def test_round_robin_numbers_requests_not_attempts() -> None:
    pool = Pool(policy="round_robin")
    request = RoutedRequest(pool.router, prompt(64))
    first = request.assign(frozenset())
    second = request.assign({first.worker_id})
    assert first.worker_id != second.worker_id
    assert pool.metric("warmroute_gateway_retries_total", pool="p") == 1
    names = [pool.assign(prompt(64)).worker_id for _ in range(4)]
    assert sorted(names) == sorted(NAMES)


def test_retries_end_when_the_budget_does() -> None:
    pool = Pool(retry_ratio=0.2, retries_per_second=0)
    saved = round(pool.router.state.retry_budget.balance)
    retried = 0
    for _ in range(1000):
        routed = RoutedRequest(pool.router, None)
        first = routed.assign(set())
        second = routed.assign({first.worker_id})
        retried += second is not None
    assert saved + 199 <= retried <= saved + 201
    assert pool.metric("warmroute_gateway_refused_retries_total", pool="p") == 1000 - retried
    assert pool.metric("warmroute_gateway_retries_total", pool="p") == retried


def test_a_worker_that_goes_and_comes_back_keeps_no_phantom_load() -> None:
    pool = Pool(("a", "b"))
    first = pool.assign(prompt(640))
    gone = first.worker_id
    targets = [worker.target for worker in pool.router.census.workers.all]
    pool.targets([target for target in targets if target.uid != gone])
    pool.targets(targets)
    second = pool.assign(prompt(640, 9000))
    first.close(Outcome.COMPLETED)
    second.close(Outcome.COMPLETED)
    assert pool.router.state.reservations.workers == frozenset()


def test_what_the_index_knows_whole_is_not_predicted() -> None:
    pool = Pool()
    pool.hold("c", prompt(640).keys)
    with open_assignments(pool, [prompt(640)]) as (assignment,):
        assert assignment.worker_id == "c"
        assert pool.router.state.predictions.keys == 0
    with open_assignments(pool, [prompt(704)]) as (assignment,):
        assert assignment.worker_id == "c"
        assert pool.router.state.predictions.keys == 11
