"""The worker table: joins, health, ejection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.http.outcome import Outcome
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import (
    LONGEST_EJECTION_SECONDS,
    RECENT,
    SLOW_START_SECONDS,
    State,
    Worker,
    WorkerTable,
)
from indexer.layout import WorkerFacts

FACTS = WorkerFacts("10.0.0.1:8100", "m", "builtin", "0", 16, 64, "f", publishes_events=True)
TARGET = Target("uid-1", "10.0.0.1", 8100, worker_id="uid-1", name="pod-1")


def healthy(target: Target = TARGET) -> Worker:
    worker = Worker(target)
    worker.checked(0, healthy=True)
    return worker


def end(worker: Worker, outcome: Outcome, now: float) -> None:
    """The request ends, in a pool that has enough other workers."""
    table = WorkerTable()
    table.set_targets([worker.target, *(Target(f"o{number}", "10.1.0.1", number) for number in range(1, 4))])
    table._workers[worker.target.uid] = worker
    for other in table.all:
        if other is not worker:
            other.checked(0, healthy=True)
    table.ended(worker, outcome, now)


def test_a_worker_is_ready_only_after_its_first_good_check() -> None:
    worker = Worker(TARGET)
    assert worker.state(0) is State.UNHEALTHY
    worker.checked(0, healthy=True)
    assert worker.state(0) is State.READY


def test_one_slow_check_is_forgiven_and_a_refused_connection_is_not() -> None:
    worker = healthy()
    worker.checked(0, healthy=False)
    assert worker.state(0) is State.READY
    worker.checked(0, healthy=False)
    assert worker.state(0) is State.UNHEALTHY
    other = healthy()
    other.checked(0, healthy=False, refused=True)
    assert other.state(0) is State.UNHEALTHY


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.REFUSED, Outcome.CLIENT_GONE])
def test_replies_and_leaving_clients_never_eject(outcome: Outcome) -> None:
    worker = healthy()
    for _ in range(10):
        end(worker, outcome, 0)
    assert worker.state(0) is State.READY


def test_ejection_grows_is_capped_and_forgets_after_good_replies() -> None:
    worker, now, lengths = healthy(), 0.0, []
    for _ in range(8):
        end(worker, Outcome.UNREACHABLE, now)
        lengths.append(worker.ejected_until - now)
        now = worker.ejected_until
    assert lengths[:3] == [1, 2, 4]
    assert lengths[-1] == LONGEST_EJECTION_SECONDS
    end(worker, Outcome.COMPLETED, now)
    end(worker, Outcome.UNREACHABLE, now)
    assert worker.ejected_until - now == LONGEST_EJECTION_SECONDS
    now = worker.ejected_until
    for _ in range(RECENT):
        end(worker, Outcome.COMPLETED, now)
    end(worker, Outcome.UNREACHABLE, now)
    assert worker.ejected_until - now == 1


def test_failures_of_requests_in_flight_count_as_one_ejection() -> None:
    worker = healthy()
    for _ in range(5):
        end(worker, Outcome.UNREACHABLE, 0.5)
    assert worker.ejected_until == 1.5


def test_server_errors_eject_from_the_third_on() -> None:
    worker = healthy()
    end(worker, Outcome.SERVER_ERROR, 0)
    end(worker, Outcome.SERVER_ERROR, 0)
    assert worker.state(0) is State.READY
    end(worker, Outcome.SERVER_ERROR, 0)
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
    table.get("uid-1").checked(0, healthy=True)
    gone = table.set_targets([replace(TARGET, name="renamed")])
    assert [worker.target.uid for worker in gone] == ["b"]
    assert table.get("uid-1").healthy
    assert table.get("uid-1").name == "renamed"
    table.set_targets([replace(TARGET, host="10.0.0.9")])
    assert not table.get("uid-1").healthy


def test_ipv6_addresses_are_bracketed() -> None:
    assert Target("x", "fd00::1", 80).address == "[fd00::1]:80"


def test_a_worker_that_fails_half_of_its_requests_is_ejected() -> None:
    worker = healthy()
    for _ in range(RECENT // 2):
        assert worker.state(0) is State.READY
        end(worker, Outcome.COMPLETED, 0)
        end(worker, Outcome.SERVER_ERROR, 0)
    assert worker.state(0) is State.EJECTED


@pytest.mark.parametrize(("workers", "most"), [(1, 0), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_at_most_half_of_the_healthy_workers_are_ejected(workers: int, most: int) -> None:
    table = WorkerTable()
    table.set_targets([Target(f"w{number}", "10.0.0.1", 8000 + number) for number in range(workers + 2)])
    for worker in table.all[:workers]:
        worker.checked(0, healthy=True)
    for worker in table.all[:workers]:
        table.ended(worker, Outcome.UNREACHABLE, 1.0)
    assert sum(worker.state(1.5) is State.EJECTED for worker in table.all) == most


def test_a_late_failure_of_a_worker_that_left_ejects_nobody() -> None:
    table = WorkerTable()
    table.set_targets([TARGET, Target("b", "10.0.0.2", 8100)])
    left = table.get("uid-1")
    table.set_targets([replace(TARGET, host="10.0.0.9"), Target("b", "10.0.0.2", 8100)])
    for worker in table.all:
        worker.checked(0, healthy=True)
    table.ended(left, Outcome.UNREACHABLE, 1.0)
    assert all(worker.state(1.0) is State.READY for worker in table.all)


def test_a_share_grows_from_a_tenth_to_all() -> None:
    worker = Worker(TARGET)
    worker.checked(100.0, healthy=True)
    assert [worker.share(100 + SLOW_START_SECONDS * part) for part in (0, 0.05, 0.5, 1, 9)] == [0.1, 0.1, 0.5, 1, 1]
    worker.checked(150.0, healthy=True)
    assert worker.share(150.0) == 1  # it had been healthy all the time
    worker.eject(200.0)
    assert worker.share(worker.ejected_until) == 0.1
