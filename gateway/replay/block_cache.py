"""A simulated engine's paged prefix cache: blocks in use are pinned, the others leave least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """At most `capacity` blocks: those that requests use, counted by key; cached ones; and blocks without a key, of
    partial blocks and replies."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._unnamed = 0

    @property
    def use(self) -> float:
        """Share of the blocks that requests use."""
        return (len(self._used) + self._unnamed) / self.capacity

    def leading(self, keys: Sequence[int]) -> int:
        """How many leading blocks of a prompt are here."""
        used, cached = self._used, self._cached
        for number, key in enumerate(keys):
            if key not in used and key not in cached:
                return number
        return len(keys)

    def admit(self, keys: Sequence[int], unnamed: int) -> tuple[int, list[int]] | None:
        """Pin a prompt's blocks and `unnamed` further ones; None, and nothing changed, where that does not fit yet.

        Returns how many leading blocks were here, and the keys that had to go.
        """
        used, cached = self._used, self._cached
        new = len([key for key in keys if key not in used])
        if len(used) + new + self._unnamed + unnamed > self.capacity:
            return None
        hits = self.leading(keys)
        for key in keys:
            if key in used:
                used[key] += 1
            else:
                used[key] = 1
                cached.pop(key, None)
        self._unnamed += unnamed
        excess = len(used) + len(cached) + self._unnamed - self.capacity
        return hits, [cached.popitem(last=False)[0] for _ in range(excess)]

    def release(self, keys: Sequence[int], unnamed: int) -> None:
        """A request ended: its blocks stay as cached ones, the tail to go first."""
        used, cached = self._used, self._cached
        for key in reversed(keys):
            count = used[key] - 1
            if count:
                used[key] = count
            else:
                del used[key]
                cached[key] = None
        self._unnamed -= unnamed

    def check(self) -> None:
        """Raises AssertionError where the books do not balance; for tests."""
        if len(self._used) + len(self._cached) + self._unnamed > self.capacity:
            raise AssertionError("more blocks than there are")
        if self._used.keys() & self._cached.keys():
            raise AssertionError("a block is both used and cached")
        if self._unnamed < 0 or any(count <= 0 for count in self._used.values()):
            raise AssertionError("a count is below what it can be")
