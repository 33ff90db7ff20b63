"""How much of what a pool's caches evict is asked for again, as the index's events tell, and what an eviction costs.

    price = r + r**2 + r**3 + ... = r / (1 - r)

in prefills of the tokens evicted. r is the share of the evicted keys that come back: each of them was computed again,
and that evicted another one of its like. Where what goes is never asked for the price is 0; at r = 3/4 it is 3.

Keys that were evicted lately (ghosts) are remembered for that: every 16th one, and as many of these as the pool's
caches hold of them, since so long a working set would fit if no two workers held the same. r is over the latest eighth
of a turnover of the caches: soon enough for a pool that begins to thrash. All gateways see the same events, so they
come to the same price. No I/O and no clock.
"""

from __future__ import annotations

from typing import Final

SAMPLE: Final = 16
SAMPLED: Final = SAMPLE - 1
"""A key is looked at where none of these bits is set."""
LEAST_GHOSTS: Final = 64
TURNOVER_SHARE: Final = 8
LEAST_WINDOW: Final = 16.0
"""Sampled evictions."""
FIRST_SHARE: Final = 0.75
"""r before anything is known: caches that begin to evict hold little that is junk yet."""
MOST_SHARE: Final = 0.95


class EvictionPrice:
    """Of one pool. Bounded by the keys that its workers hold, over SAMPLE."""

    def __init__(self) -> None:
        self.share_returned = FIRST_SHARE
        """r."""
        self.price = FIRST_SHARE / (1 - FIRST_SHARE)
        self.ghosts: dict[int, int] = {}
        """How many copies of each were evicted and have not come back; in the order of the latest eviction."""
        self._evicted = LEAST_WINDOW
        self._returned = LEAST_WINDOW * FIRST_SHARE

    def evicted(self, key: int, held: int) -> None:
        """A sampled key left a worker; the pool's workers hold so many keys, each copy counted."""
        ghosts, room = self.ghosts, max(LEAST_GHOSTS, held // SAMPLE)
        ghosts[key] = ghosts.pop(key, 0) + 1
        while len(ghosts) > room:
            del ghosts[next(iter(ghosts))]
        window = max(LEAST_WINDOW, room / TURNOVER_SHARE)
        self._evicted += 1.0
        if self._evicted > window:
            self._returned *= window / self._evicted
            self._evicted = window
        self._settle()

    def returned(self, key: int) -> None:
        """A sampled key that is a ghost is held by a worker again."""
        copies = self.ghosts[key]
        if copies > 1:
            self.ghosts[key] = copies - 1
        else:
            del self.ghosts[key]
        self._returned += 1.0
        self._settle()

    def _settle(self) -> None:
        share = self.share_returned = min(MOST_SHARE, self._returned / self._evicted)
        self.price = share / (1 - share)
