"""Approximate mode: what workers that publish no events are taken to hold, from what was routed to them.

A worker that does not report what it holds is taken to keep the latest prompts it computed, up to its capacity: its own
least-recently-used list, with the tail of a prompt leaving before its head, as engines evict. It errs where the
engine evicts otherwise or other gateways route to the worker; an error costs one miss, never a wrong answer.

Chosen for each worker by itself: for those whose Hello says that they publish no events, and those that never said
Hello. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from indexer.layout import WorkerFacts
from indexer.reader.mirror import Match, Mirror

DEFAULT_CAPACITY_KEYS: Final = 8192
"""Of a worker that does not tell: half a million tokens at 64 a block, a common GPU's cache for a model of 8 B."""
DEFAULT_KEY_LIMIT: Final = 2_000_000
"""Keys over all workers; beyond it new ones are left out, as the mirror does."""

_FACTS: Final = WorkerFacts("", "", "", "", 1, 1, "", publishes_events=False)


class ApproximateIndex:
    """Keys by worker, oldest first. Bounded by each worker's capacity and by `key_limit` in all.

    `forget` must be called for a worker that leaves.
    """

    def __init__(self, *, key_limit: int = DEFAULT_KEY_LIMIT) -> None:
        self._mirror = Mirror(key_limit=key_limit)
        self._held: dict[str, dict[int, None]] = {}
        self._slots = count(1)

    def __len__(self) -> int:
        """Workers that something is known of."""
        return len(self._held)

    @property
    def keys(self) -> int:
        """Distinct keys over all workers, those of workers forgotten and not yet swept included."""
        return self._mirror.size

    def computed(self, worker: str, keys: Sequence[int], capacity_keys: int = DEFAULT_CAPACITY_KEYS) -> None:
        """The worker computed a prompt with these keys: it holds them now, as the last to go."""
        held = self._held.get(worker)
        mirror = self._mirror
        if held is None:
            held = self._held[worker] = {}
            slot = next(self._slots)
            mirror.open_slot(slot)
            mirror.set_worker(worker, slot, _FACTS)
        slot = mirror.slot(worker)
        keys = keys[:capacity_keys]
        new = [key for key in keys if key not in held]
        for key in reversed(keys):  # the head last, so that it outlives the tail
            held.pop(key, None)
            held[key] = None
        evicted = []
        while len(held) > capacity_keys:
            key = next(iter(held))
            del held[key]
            evicted.append(key)
        mirror.remove(slot, "device", evicted)
        mirror.add(slot, "device", new)
        mirror.sweep()  # what forgotten workers left, a little with every prompt

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        """For every worker taken to hold at least the first block: how many leading blocks."""
        return self._mirror.match(keys) if self._held else {}

    def forget(self, worker: str) -> None:
        """The worker left, or its cache is empty again."""
        if self._held.pop(worker, None) is not None:
            self._mirror.drop_worker(worker)
