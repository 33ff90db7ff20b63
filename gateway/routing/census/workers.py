"""The workers of one pool as routing sees them: discovery's targets, their health, and who they are in the index.

No I/O; the clock is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gateway.http.outcome import Outcome
from gateway.routing.census.ranks import RANK_HEADER, places
from gateway.routing.census.targets import Target
from indexer.layout import WorkerFacts

FIRST_EJECTION_SECONDS: Final = 1.0
LONGEST_EJECTION_SECONDS: Final = 30.0
SERVER_ERRORS_TO_EJECT: Final = 3
RECENT: Final = 20
"""Replies that a worker's share of errors is taken over; half of them errors eject it too, so that a worker that fails
fast and often, if not always, does not draw the pool's requests."""
_RECENT_BITS: Final = (1 << RECENT) - 1
EJECTED_SHARE: Final = 0.5
"""Most of a pool's healthy workers that may be ejected: when more fail, the fault is rather elsewhere."""
SLOW_START_SECONDS: Final = 10.0
SLOW_START_SHARE: Final = 0.1
"""A worker that is new or back begins with this share of what it would get: its cache, its compiled kernels and its
connections are cold."""
FAILED_CHECKS_TO_FAIL: Final = 2


class State(StrEnum):
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
    warm_at: float = 0.0
    """When its slow start is over."""
    server_errors: int = 0
    """In a row."""
    recent_errors: int = 0
    """The last RECENT replies, newest in the lowest bit; a set bit is an error."""
    replies: int = 0
    """How many of those bits mean something."""
    ejections: int = 0
    ejected_until: float = 0.0
    index_id: str | None = None
    facts: WorkerFacts | None = None
    approximate: bool = True
    """Whether what it holds is known only from what was routed to it: it publishes no events, or never sent Hello. One
    whose agent fell silent is late instead: it still holds what it held."""
    uid: str = field(init=False)
    """The target's."""
    name: str = field(init=False)
    """For people: headers, logs, metrics. Discovery's word, which a restart of the worker does not change."""
    capacity_tokens: int = 0
    """Of its KV cache on the device; 0 when not known."""
    header: tuple[bytes, bytes] = field(init=False)
    """The reply header that tells the name."""
    rank_headers: tuple[tuple[bytes, bytes], ...] = ()
    """The request header that tells an engine which of its ranks is meant."""

    def __post_init__(self) -> None:
        self.found(self.target)

    def found(self, target: Target) -> None:
        """Take what discovery says of it now."""
        self.target = target
        self.uid = target.uid
        self.name = target.name or target.worker_id or target.address
        self.header = (b"x-warmroute-worker", self.name.encode("latin-1", "replace"))
        self.rank_headers = () if target.rank is None else ((RANK_HEADER, b"%d" % target.rank),)

    def state(self, now: float) -> State:
        if not self.healthy:
            return State.UNHEALTHY
        return State.EJECTED if now < self.ejected_until else State.READY

    def share(self, now: float) -> float:
        """How much of what it would get it gets now: below 1 before `warm_at`."""
        return min(1.0, max(SLOW_START_SHARE, 1 - (self.warm_at - now) / SLOW_START_SECONDS))

    def __repr__(self) -> str:
        return f"Worker({self.name})"

    def checked(self, now: float, *, healthy: bool, refused: bool = False) -> None:
        """Note a health check. A refused connection is certain; other failures count from the second on."""
        if healthy:
            if not self.healthy:
                self.warm_at = max(self.warm_at, now + SLOW_START_SECONDS)
            self.healthy, self.failed_checks = True, 0
            return
        self.failed_checks += 1
        if refused or self.failed_checks >= FAILED_CHECKS_TO_FAIL:
            self.healthy = False

    def failing(self, outcome: Outcome) -> bool:
        """Note how a request ended; whether the worker is to be ejected for it. Replies below 500 and clients that
        leave never count against it."""
        match outcome:
            case Outcome.COMPLETED | Outcome.REFUSED:
                self._remember(error=False)
                self.server_errors = 0
                if self.replies == RECENT and not self.recent_errors:
                    self.ejections = 0
            case Outcome.UNREACHABLE | Outcome.BROKEN:
                return True
            case Outcome.SERVER_ERROR:
                self._remember(error=True)
                self.server_errors += 1
                often = self.replies == RECENT and self.recent_errors.bit_count() * 2 >= RECENT
                return often or self.server_errors >= SERVER_ERRORS_TO_EJECT
        return False

    def eject(self, now: float) -> None:
        """Take it out for a while, each time for longer until RECENT replies in a row were good."""
        if now < self.ejected_until:
            return
        self.ejected_until = now + min(LONGEST_EJECTION_SECONDS, FIRST_EJECTION_SECONDS * 2.0**self.ejections)
        self.warm_at = self.ejected_until + SLOW_START_SECONDS
        self.ejections = min(self.ejections + 1, 16)
        self.server_errors = self.recent_errors = self.replies = 0

    def _remember(self, *, error: bool) -> None:
        self.recent_errors = (self.recent_errors << 1 | error) & _RECENT_BITS
        if self.replies < RECENT:
            self.replies += 1


class WorkerTable:
    """Bounded by discovery's targets, and their ranks."""

    def __init__(self) -> None:
        self._targets: tuple[Target, ...] = ()
        self._workers: dict[str, Worker] = {}
        self._found_as: dict[str, str] = {}
        """The uid that discovery gave, by the worker's own: another one where it is a rank of an engine."""
        self.ranked = False
        """Whether some are ranks."""
        self._index: Mapping[str, WorkerFacts] = {}
        self._slots: Mapping[str, int] = {}

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def all(self) -> list[Worker]:
        return list(self._workers.values())

    def get(self, uid: str) -> Worker | None:
        return self._workers.get(uid)

    def without_lost_ranks(self, workers: list[Worker], late: AbstractSet[str]) -> list[Worker]:
        """Without ranks that are late while others of their engine are not: it came back with fewer, and refuses what
        is meant for them."""
        alive = {worker.target.address for worker in workers if worker.index_id not in late}
        return [
            worker
            for worker in workers
            if worker.target.rank is None or worker.index_id not in late or worker.target.address not in alive
        ]

    def set_targets(self, targets: Iterable[Target]) -> list[Worker]:
        """Take discovery's complete set; a target that stays keeps its history unless its address changed. Returns the
        workers that left."""
        self._targets = tuple(targets)
        return self._place()

    def set_index(self, workers: Mapping[str, WorkerFacts], slots: Mapping[str, int]) -> list[Worker]:
        """Take the workers of the index and their slots: a target is joined by worker_id, else by address. Returns the
        workers that left: an engine may turn out to be several ranks, or no longer to be."""
        self._index, self._slots = workers, slots
        return self._place()

    def _place(self) -> list[Worker]:
        former, self._workers = self._workers, {}
        # What is known of an engine's health goes for its ranks, and the other way round.
        engines = {self._found_as[uid]: worker for uid, worker in former.items()}
        self._found_as = {}
        for found_as, target in places(self._targets, self._index, self._slots):
            worker = former.pop(target.uid, None)
            if worker is None or worker.target.address != target.address:
                worker = Worker(target)
                engine = engines.get(found_as)
                if engine is not None and engine.target.address == target.address:
                    worker.healthy, worker.warm_at = engine.healthy, engine.warm_at
            worker.found(target)
            self._workers[target.uid] = worker
            self._found_as[target.uid] = found_as
        self.ranked = any(worker.target.rank is not None for worker in self._workers.values())
        self._join()
        return list(former.values())

    def ended(self, worker: Worker, outcome: Outcome, now: float) -> None:
        """Note how a request to this worker ended, and eject it where that calls for it and enough others are left."""
        if not worker.failing(outcome) or self._workers.get(worker.uid) is not worker:
            return
        states = [other.state(now) for other in self._workers.values() if other is not worker]
        ejected = sum(state is State.EJECTED for state in states)
        healthy = sum(state is not State.UNHEALTHY for state in states)
        if ejected + 1 <= EJECTED_SHARE * (healthy + 1):
            worker.eject(now)

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
            facts = worker.facts = self._index.get(worker.index_id) if worker.index_id is not None else None
            worker.approximate = facts is None or not facts.publishes_events
            worker.capacity_tokens = facts.capacity.get("device", 0) * facts.index_block_tokens if facts else 0
