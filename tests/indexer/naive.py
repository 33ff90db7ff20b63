"""The mirror's naive twin: sets of keys a worker, walked one worker at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence


class NaiveMirror:
    def __init__(self) -> None:
        self.slots: dict[int, dict[str, set[int]]] = {}
        self.workers: dict[str, int] = {}

    def open_slot(self, slot: int) -> None:
        self.slots.setdefault(slot, defaultdict(set))

    def set_worker(self, worker: str, slot: int) -> None:
        former = self.workers.get(worker, 0)
        if former != slot:
            self.slots.pop(former, None)
        self.workers[worker] = slot

    def drop_worker(self, worker: str) -> None:
        self.slots.pop(self.workers.pop(worker, 0), None)

    def add(self, slot: int, tier: str, keys: Iterable[int]) -> None:
        if slot in self.slots:
            self.slots[slot][tier].update(keys)

    def remove(self, slot: int, tier: str, keys: Iterable[int]) -> None:
        if slot in self.slots:
            self.slots[slot][tier].difference_update(keys)

    def held(self, worker: str, tier: str) -> set[int]:
        slot = self.slots.get(self.workers.get(worker, 0))
        return set(slot[tier]) if slot else set()

    def match(self, keys: Sequence[int]) -> dict[str, tuple[int, int]]:
        """worker -> (blocks, host blocks)"""
        found = {}
        for worker in self.workers:
            device, host = self.held(worker, "device"), self.held(worker, "host")
            blocks = host_blocks = 0
            for key in keys:
                if key not in device and key not in host:
                    break
                blocks += 1
                host_blocks += key not in device
            if blocks:
                found[worker] = (blocks, host_blocks)
        return found
