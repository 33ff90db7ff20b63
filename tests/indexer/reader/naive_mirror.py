"""The mirror's naive twin: one set of keys a worker and tier, walked one worker at a time.

The same interface as `Mirror` and nothing clever: what the mirror must equal in tests, and the baseline
that it is measured against. Nothing that serves requests imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from indexer.layout import TIERS, Tier, WorkerFacts
from indexer.reader.mirror import Match


class NaiveMirror:
    """The index of a pool as sets. Bounded by nothing: for tests and benches."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[Tier, set[int]]] = {}
        self._workers: dict[str, tuple[int, WorkerFacts]] = {}

    @property
    def workers(self) -> Mapping[str, WorkerFacts]:
        return {worker_id: facts for worker_id, (_, facts) in self._workers.items()}

    @property
    def slots(self) -> Mapping[str, int]:
        return {worker_id: slot for worker_id, (slot, _) in self._workers.items()}

    def facts(self, worker_id: str) -> WorkerFacts | None:
        return self.workers.get(worker_id)

    def slot(self, worker_id: str) -> int:
        return self.slots.get(worker_id, 0)

    def open_slot(self, slot: int) -> None:
        self._slots.setdefault(slot, {tier: set() for tier in TIERS})

    def set_worker(self, worker_id: str, slot: int, facts: WorkerFacts) -> None:
        former = self.slot(worker_id)
        if former != slot:
            self.retire_slot(former)
        self._workers[worker_id] = (slot, facts)

    def drop_worker(self, worker_id: str) -> None:
        self.retire_slot(self.slot(worker_id))
        self._workers.pop(worker_id, None)

    def retire_slot(self, slot: int) -> None:
        self._slots.pop(slot, None)

    def add(self, slot: int, tier: Tier, keys: Iterable[int]) -> None:
        if slot in self._slots:
            self._slots[slot][tier].update(keys)

    def remove(self, slot: int, tier: Tier, keys: Iterable[int]) -> None:
        if slot in self._slots:
            self._slots[slot][tier].difference_update(keys)

    def sweep(self) -> bool:
        """Nothing to do: a retired slot is gone at once."""
        return False

    @property
    def size(self) -> int:
        return sum(map(self.tier_size, TIERS))

    def tier_size(self, tier: Tier) -> int:
        return len(set().union(*(held[tier] for held in self._slots.values())))

    def held(self, worker_id: str, tier: Tier) -> Iterator[int]:
        if (held := self._slots.get(self.slot(worker_id))) is not None:
            yield from held[tier]

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        found = {}
        for worker_id, (slot, _) in self._workers.items():
            held = self._slots.get(slot)
            if held is None:
                continue
            device, host = held["device"], held["host"]
            blocks = host_blocks = 0
            for key in keys:
                if key not in device:
                    if key not in host:
                        break
                    host_blocks += 1
                blocks += 1
            if blocks:
                found[worker_id] = Match(blocks, host_blocks)
        return found
