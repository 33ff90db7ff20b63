"""The workers of one pool as routing sees them: discovery's targets, their health, and who they are in the index.

No I/O; the clock is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.discovery.targets import Target
from gateway.routing.assignment import Outcome
from indexer.layout import WorkerFacts

EJECT_SECONDS: Final = (1.0, 30.0)
SERVER_ERRORS_TO_EJECT: Final = 3
FAILED_CHECKS_TO_FAIL: Final = 2


class State(Enum):
    """Whether a worker gets requests."""

    READY = "ready"
    EJECTED = "ejected"
    """Requests failed lately; it comes back by itself."""
    UNHEALTHY = "unhealthy"
    """Its health check fails, or has not succeeded yet."""


@dataclass(slots=True, eq=False)
class Worker:
    """One target and what is known of it."""

    target: Target
    healthy: bool = False
    failed_checks: int = 0
    server_errors: int = 0
    ejections: int = 0
    ejected_until: float = 0.0
    index_id: str | None = None
    facts: WorkerFacts | None = None

    @property
    def name(self) -> str:
        """For people: headers, logs, metrics. Discovery's word, which a restart of the worker does not change."""
        return self.target.name or self.target.worker_id or self.target.address

    def state(self, now: float) -> State:
        if not self.healthy:
            return State.UNHEALTHY
        return State.EJECTED if now < self.ejected_until else State.READY

    def __repr__(self) -> str:
        return f"Worker({self.name})"

    def checked(self, *, healthy: bool, refused: bool = False) -> None:
        """Note a health check. A refused connection is certain; other failures count from the second on."""
        if healthy:
            self.healthy, self.failed_checks = True, 0
            return
        self.failed_checks += 1
        if refused or self.failed_checks >= FAILED_CHECKS_TO_FAIL:
            self.healthy = False

    def ended(self, outcome: Outcome, now: float) -> None:
        """Note how a request ended. Replies below 500 and clients that leave never count against the worker."""
        match outcome:
            case Outcome.COMPLETED | Outcome.REFUSED:
                self.server_errors = self.ejections = 0
            case Outcome.UNREACHABLE | Outcome.BROKEN:
                self._eject(now)
            case Outcome.SERVER_ERROR:
                self.server_errors += 1
                if self.server_errors >= SERVER_ERRORS_TO_EJECT:
                    self._eject(now)

    def _eject(self, now: float) -> None:
        if now < self.ejected_until:
            return
        first, longest = EJECT_SECONDS
        self.ejected_until = now + min(longest, first * 2**self.ejections)
        self.ejections = min(self.ejections + 1, 16)
        self.server_errors = 0


class WorkerTable:
    """Bounded by discovery's targets."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._index: Mapping[str, WorkerFacts] = {}
        self._slots: Mapping[str, int] = {}

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def all(self) -> list[Worker]:
        return list(self._workers.values())

    def get(self, uid: str) -> Worker | None:
        return self._workers.get(uid)

    def set_targets(self, targets: Iterable[Target]) -> list[Worker]:
        """Take the complete set; a target that stays keeps its history unless its address changed. Returns the
        workers that left."""
        former, self._workers = self._workers, {}
        for target in targets:
            worker = former.pop(target.uid, None)
            if worker is None or worker.target.address != target.address:
                worker = Worker(target)
            worker.target = target
            self._workers[target.uid] = worker
        self._join()
        return list(former.values())

    def set_index(self, workers: Mapping[str, WorkerFacts], slots: Mapping[str, int]) -> None:
        """Take the workers of the index and their slots: a target is joined by worker_id, else by address."""
        self._index, self._slots = workers, slots
        self._join()

    @property
    def unjoined(self) -> int:
        return sum(worker.index_id is None for worker in self._workers.values())

    def _join(self) -> None:
        # A worker that came back under another id leaves its former one in the index for a while. Slots are given out
        # in order, so the newest is the one that lives; one without a slot has just said Hello.
        by_age = sorted(self._index, key=lambda worker_id: self._slots.get(worker_id) or math.inf)
        by_address = {self._index[worker_id].address: worker_id for worker_id in by_age}
        for worker in self._workers.values():
            target = worker.target
            worker.index_id = target.worker_id if target.worker_id in self._index else by_address.get(target.address)
            worker.facts = self._index.get(worker.index_id) if worker.index_id is not None else None
