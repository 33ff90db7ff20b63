"""Who may be asked at all, by health, exclusion, adapters, pins and slow start."""

from __future__ import annotations

import pytest

from gateway.routing.candidates import Constraints
from gateway.routing.routed_request import RoutedRequest
from tests.gateway.routing.support import NAMES, Pool, prompt


def test_excluded_workers_are_not_asked_again_and_doubtful_ones_only_for_want_of_others() -> None:
    pool = Pool(("a", "b"))
    for worker in pool.router.census.workers.all:
        worker.checked(0, healthy=False, refused=True)
    assignment = pool.assign(prompt(64))
    other = pool.assign(prompt(64), frozenset({assignment.worker_id}))
    assert {assignment.worker_id, other.worker_id} == {"a", "b"}
    assert RoutedRequest(pool.router, None).assign({"a", "b"}) is None
    pool.router.census.workers.get("a").checked(0, healthy=True)
    assert pool.assign(prompt(64)).worker_id == "a"
    assert RoutedRequest(pool.router, None).assign({"a"}) is None


def test_a_healthy_worker_in_ejection_is_asked_before_dead_ones() -> None:
    pool = Pool()
    for name in ("b", "c", "d"):
        pool.router.census.workers.get(name).checked(0, healthy=False, refused=True)
    pool.router.census.workers.get("a").eject(pool.now)
    assert {pool.assign(prompt(64)).worker_id for _ in range(20)} == {"a"}


def test_workers_that_serve_the_adapter_get_its_requests() -> None:
    pool = Pool()
    pool.hold("b", [], adapters=("lora-a",))
    assert pool.router.census.current().adapters == {"lora-a"}
    for _ in range(10):
        assert RoutedRequest(pool.router, prompt(64), Constraints(adapter="lora-a")).assign(set()).worker_id == "b"
    workers = {
        RoutedRequest(pool.router, prompt(64), Constraints(adapter="lora-new")).assign(set()).worker_id
        for _ in range(40)
    }
    assert workers == set(NAMES)  # loaded since the workers said Hello, maybe: the engine judges


def test_a_request_that_belongs_to_a_worker_goes_nowhere_else() -> None:
    pool = Pool()
    pool.router.census.workers.get("c").eject(pool.now)
    routed = RoutedRequest(pool.router, prompt(64), Constraints(only="c"))
    assert routed.assign(set()).worker_id == "c"
    assert routed.assign({"c"}) is None
    assert RoutedRequest(pool.router, None, Constraints(only="gone")).assign(set()) is None


def test_a_returning_worker_starts_slowly() -> None:
    pool = Pool(policy="round_robin")
    pool.now += 100
    worker = pool.router.census.workers.get("a")
    worker.eject(pool.now)
    assert all(pool.assign(None).worker_id != "a" for _ in range(50))

    def share() -> float:
        return sum(pool.assign(None).worker_id == "a" for _ in range(2000)) / 2000

    pool.now = worker.ejected_until
    first = share()
    pool.now += 5
    half = share()
    pool.now += 5
    full = share()
    assert first < 0.06 < half < full
    assert full == pytest.approx(0.25, abs=0.01)


def test_an_ejected_worker_beats_an_error_and_is_asked_last() -> None:
    pool = Pool(("a", "b"))
    pool.router.census.workers.get("a").eject(pool.now)
    routed = RoutedRequest(pool.router, prompt(64))
    assert routed.assign(frozenset()).worker_id == "b"
    assert routed.assign(frozenset("b")).worker_id == "a"
    assert routed.assign(frozenset("ab")) is None
    # One that is not healthy is no help while another one is there.
    pool.router.census.workers.get("a").healthy = False
    assert RoutedRequest(pool.router, prompt(64)).assign(frozenset("b")) is None


def test_a_request_pinned_to_a_worker_that_may_not_continue_its_response_goes_nowhere() -> None:
    pool = Pool()
    assert (
        RoutedRequest(pool.router, prompt(64), Constraints(only="c", within=frozenset("ac"))).assign(frozenset())
        is not None
    )
    assert (
        RoutedRequest(pool.router, prompt(64), Constraints(only="c", within=frozenset("ab"))).assign(frozenset())
        is None
    )
