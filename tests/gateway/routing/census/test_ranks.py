"""Engines of several data-parallel ranks behind one address: each rank is a worker of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.outcome import Outcome
from gateway.routing.census.ranks import MOST_RANKS, places
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import State, WorkerTable
from gateway.routing.routed_request import RoutedRequest
from indexer.layout import WorkerFacts
from tests.gateway.routing.support import Pool, prompt

POD = Target("uid-1", "10.0.0.1", 8000, worker_id="uid-1", name="pod-1")
PLAIN = Target("10.0.0.2:8000", "10.0.0.2", 8000)
FACTS = WorkerFacts(POD.address, "m", "vllm", "0", 16, 64, "f", publishes_events=True)


def ranks(engine: str, number: int, at: Target = POD) -> dict[str, WorkerFacts]:
    return {f"{engine}/dp{rank}": replace(FACTS, address=at.address) for rank in range(number)}


def placed(
    targets: list[Target], index: dict[str, WorkerFacts], **slots: int
) -> list[tuple[str, str | None, int | None]]:
    found = {worker_id: slots.get(worker_id.partition("/")[0].replace("-", "_"), 1) for worker_id in index}
    return [(target.uid, target.worker_id, target.rank) for _, target in places(targets, index, found)]


def test_a_rank_is_a_place_and_an_engine_without_ranks_stays_one() -> None:
    index = ranks("uid-1", 2) | {"uid-2": replace(FACTS, address=PLAIN.address)}
    assert placed([POD, PLAIN], index) == [
        ("uid-1/dp0", "uid-1/dp0", 0),
        ("uid-1/dp1", "uid-1/dp1", 1),
        (PLAIN.uid, None, None),
    ]
    assert [target.name for _, target in places([POD], index, {})] == ["pod-1/dp0", "pod-1/dp1"]
    assert placed([POD], {}) == [("uid-1", "uid-1", None)]


def test_ranks_are_joined_by_address_where_discovery_does_not_know_the_id() -> None:
    """As for fixed addresses, whose names do not change with the id that an agent draws at its start."""
    index = ranks("drawn", 2, PLAIN)
    assert placed([PLAIN], index) == [
        ("10.0.0.2:8000/dp0", "drawn/dp0", 0),
        ("10.0.0.2:8000/dp1", "drawn/dp1", 1),
    ]
    assert [target.name for _, target in places([PLAIN], index, {})] == ["10.0.0.2:8000/dp0", "10.0.0.2:8000/dp1"]


@pytest.mark.parametrize(("slots", "whole"), [({"whole": 5, "ranked": 4}, True), ({"whole": 4, "ranked": 5}, False)])
def test_of_former_rows_at_an_address_the_newest_count(slots: dict[str, int], whole: bool) -> None:
    index = ranks("ranked", 2, PLAIN) | {"whole": replace(FACTS, address=PLAIN.address)}
    assert (len(placed([PLAIN], index, **slots)) == 1) is whole


def test_an_engine_that_came_back_with_ranks_leaves_its_former_row_behind() -> None:
    index = {"uid-1": FACTS, **ranks("uid-1", 2)}
    for slots, number in (
        ({"uid-1": 1, "uid-1/dp0": 2, "uid-1/dp1": 3}, 2),
        ({"uid-1": 4, "uid-1/dp0": 2, "uid-1/dp1": 3}, 1),
    ):
        assert len(list(places([POD], index, slots))) == number


@given(st.lists(st.text(max_size=12) | st.sampled_from(["/dp1", "a/dp01", "a/dp-1", f"a/dp{MOST_RANKS}", "a/dp٣"])))
def test_other_ids_are_no_ranks(worker_ids: list[str]) -> None:
    index = dict.fromkeys(worker_ids, replace(FACTS, address="elsewhere:1"))
    assert placed([POD], index) == [("uid-1", "uid-1", None)]


def test_health_goes_with_the_engine_and_the_workers_that_left_are_told() -> None:
    table = WorkerTable()
    table.set_targets([POD, PLAIN])
    table.get("uid-1").checked(0, healthy=True)
    gone = table.set_index(ranks("uid-1", 2), {})
    assert [worker.target.uid for worker in gone] == ["uid-1"]
    assert {worker.name: worker.state(100) for worker in table.all} == {
        "pod-1/dp0": State.READY,
        "pod-1/dp1": State.READY,
        PLAIN.address: State.UNHEALTHY,
    }
    assert [worker.index_id for worker in table.all] == ["uid-1/dp0", "uid-1/dp1", None]
    first = table.get("uid-1/dp0")
    table.set_index(ranks("uid-1", 3), {})
    assert table.get("uid-1/dp0") is first
    assert len(table.set_index({}, {})) == 3
    assert table.get("uid-1").healthy
    assert len(table.set_targets([])) == 2


def engines(pool: Pool, number: int = 2) -> None:
    """Engines x and y of so many ranks each."""
    pool.targets([Target(name, f"10.0.0.{place}", 8000, worker_id=name) for place, name in enumerate("xy", 1)])
    for name in "xy":
        for rank in range(number):
            pool.hold(f"{name}/dp{rank}", [], address=f"10.0.0.{'xy'.index(name) + 1}:8000")
    pool.router.census.current()


def test_a_request_goes_to_the_rank_that_holds_its_prompt_and_names_it() -> None:
    pool = Pool(())
    engines(pool)
    asked = prompt(640)
    pool.hold("y/dp1", asked.keys, address="10.0.0.2:8000")
    assignment = pool.assign(asked)
    assert (assignment.worker_id, assignment.host, assignment.matched_tokens) == ("y/dp1", "10.0.0.2", 624)
    assert assignment.request_headers == ((b"x-data-parallel-rank", b"1"),)
    assert (b"x-warmroute-worker", b"y/dp1") in assignment.reply_headers
    assert Pool(("a",)).assign(asked).request_headers == ()


def test_load_is_counted_by_rank() -> None:
    pool = Pool(())
    engines(pool)
    held = [pool.assign(prompt(6400, 100_000 * number)) for number in range(4)]
    assert {assignment.worker_id for assignment in held} == {"x/dp0", "x/dp1", "y/dp0", "y/dp1"}
    for assignment in held:
        assignment.close(Outcome.COMPLETED)
    assert pool.router.state.reservations.workers == frozenset()


def test_a_retry_goes_to_another_engine_rather_than_to_another_rank() -> None:
    pool = Pool(())
    engines(pool, number=8)
    for _ in range(10):
        routed = RoutedRequest(pool.router, None)
        first = routed.assign(set())
        second = routed.assign({first.worker_id})
        third = routed.assign({first.worker_id, second.worker_id})
        assert {first.host, second.host} == {"10.0.0.1", "10.0.0.2"}
        assert third.worker_id not in {first.worker_id, second.worker_id}


def test_a_rank_that_its_engine_no_longer_has_gets_nothing() -> None:
    pool = Pool(())
    engines(pool, number=3)
    asked = prompt(640)
    pool.hold("x/dp2", asked.keys, address="10.0.0.1:8000")
    assert pool.assign(asked).worker_id == "x/dp2"
    pool.index.late = frozenset({"x/dp2"})
    assert all(pool.assign(prompt(640, 1000 * number)).worker_id != "x/dp2" for number in range(1, 40))
    # An agent that fell silent is late with all of its ranks, which serve on.
    pool.index.late = frozenset({"x/dp0", "x/dp1", "x/dp2"})
    assert {pool.assign(prompt(640, 1000 * number)).worker_id for number in range(40, 80)} >= {"x/dp0", "x/dp2"}


def test_an_engine_turns_out_to_have_ranks_while_a_request_is_in_flight() -> None:
    pool = Pool(("x",))
    held = pool.assign(prompt(640))
    before = pool.assign(prompt(640, 9000))
    before.first_byte()
    before.close(Outcome.COMPLETED)
    name = "warmroute_gateway_worker_requests_total"
    assert pool.metric(name, pool="p", worker="x", outcome="completed") == 1
    pool.slots += 5
    for rank in range(2):
        pool.hold(f"x/dp{rank}", [], address="10.0.0.1:8000")
    assert pool.assign(prompt(64)).worker_id in {"x/dp0", "x/dp1"}
    assert pool.metric(name, pool="p", worker="x", outcome="completed") is None
    held.first_byte()
    held.close(Outcome.COMPLETED)
    assert "x" not in pool.router.state.reservations.workers
