"""The worker table: joins, health, ejection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.discovery.targets import Target
from gateway.routing.assignment import Outcome
from gateway.routing.workers import EJECT_SECONDS, State, Worker, WorkerTable
from indexer.layout import WorkerFacts

FACTS = WorkerFacts("10.0.0.1:8100", "m", "builtin", "0", 16, 64, "f", publishes_events=True)
TARGET = Target("uid-1", "10.0.0.1", 8100, worker_id="uid-1", name="pod-1")


def healthy(target: Target = TARGET) -> Worker:
    worker = Worker(target)
    worker.checked(healthy=True)
    return worker


def test_a_worker_is_ready_only_after_its_first_good_check() -> None:
    worker = Worker(TARGET)
    assert worker.state(0) is State.UNHEALTHY
    worker.checked(healthy=True)
    assert worker.state(0) is State.READY


def test_one_slow_check_is_forgiven_and_a_refused_connection_is_not() -> None:
    worker = healthy()
    worker.checked(healthy=False)
    assert worker.state(0) is State.READY
    worker.checked(healthy=False)
    assert worker.state(0) is State.UNHEALTHY
    other = healthy()
    other.checked(healthy=False, refused=True)
    assert other.state(0) is State.UNHEALTHY


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.REFUSED, Outcome.CLIENT_GONE])
def test_replies_and_leaving_clients_never_eject(outcome: Outcome) -> None:
    worker = healthy()
    for _ in range(10):
        worker.ended(outcome, 0)
    assert worker.state(0) is State.READY


def test_ejection_grows_is_capped_and_forgets_after_a_success() -> None:
    worker, now, lengths = healthy(), 0.0, []
    for _ in range(8):
        worker.ended(Outcome.UNREACHABLE, now)
        lengths.append(worker.ejected_until - now)
        now = worker.ejected_until
    assert lengths[:3] == [1, 2, 4]
    assert lengths[-1] == EJECT_SECONDS[1]
    worker.ended(Outcome.COMPLETED, now)
    worker.ended(Outcome.UNREACHABLE, now)
    assert worker.ejected_until - now == 1


def test_failures_of_requests_in_flight_count_as_one_ejection() -> None:
    worker = healthy()
    for _ in range(5):
        worker.ended(Outcome.UNREACHABLE, 0.5)
    assert worker.ejected_until == 1.5


def test_server_errors_eject_from_the_third_on() -> None:
    worker = healthy()
    worker.ended(Outcome.SERVER_ERROR, 0)
    worker.ended(Outcome.SERVER_ERROR, 0)
    assert worker.state(0) is State.READY
    worker.ended(Outcome.SERVER_ERROR, 0)
    assert worker.state(0) is State.EJECTED


def test_joins_by_worker_id_else_by_address_else_not() -> None:
    table = WorkerTable()
    by_id = TARGET
    by_address = Target("b", "10.0.0.2", 8100)
    neither = Target("c", "10.0.0.3", 8100, worker_id="unknown")
    table.set_targets([by_id, by_address, neither])
    assert table.unjoined == 3
    table.set_index({"uid-1": FACTS, "w2": replace(FACTS, address="10.0.0.2:8100")}, {})
    assert [table.get(uid).index_id for uid in ("uid-1", "b", "c")] == ["uid-1", "w2", None]
    assert table.unjoined == 1
    table.set_index({}, {})
    assert table.unjoined == 3


def test_of_two_rows_at_one_address_the_one_with_the_newest_slot_lives() -> None:
    table = WorkerTable()
    table.set_targets([Target("a", "10.0.0.1", 8100)])
    for rows in (["dead", "alive"], ["alive", "dead"]):
        for slot in (7, 0):  # 0: it has said Hello, and its first snapshot is on its way
            table.set_index(dict.fromkeys(rows, FACTS), {"dead": 3, "alive": slot})
            assert table.get("a").index_id == "alive"


def test_targets_that_stay_keep_their_history_unless_the_address_moved() -> None:
    table = WorkerTable()
    table.set_targets([TARGET, Target("b", "10.0.0.2", 8100)])
    table.get("uid-1").checked(healthy=True)
    gone = table.set_targets([replace(TARGET, name="renamed")])
    assert [worker.target.uid for worker in gone] == ["b"]
    assert table.get("uid-1").healthy
    assert table.get("uid-1").name == "renamed"
    table.set_targets([replace(TARGET, host="10.0.0.9")])
    assert not table.get("uid-1").healthy


def test_ipv6_addresses_are_bracketed() -> None:
    assert Target("x", "fd00::1", 80).address == "[fd00::1]:80"
