"""What evictions cost, by what comes back."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from indexer.layout import WorkerFacts
from indexer.reader.eviction_price import LEAST_GHOSTS, MOST_SHARE, SAMPLE, EvictionPrice
from indexer.reader.mirror import Mirror

FACTS = WorkerFacts("127.0.0.1:1", "m", "builtin", "0", 16, 64, "f", publishes_events=True)


class Cache:
    """A worker that keeps the keys asked for last, and a mirror that is told."""

    def __init__(self, capacity: int) -> None:
        self.mirror = Mirror()
        self.mirror.open_slot(1)
        self.mirror.set_worker("w", 1, FACTS)
        self._capacity = capacity
        self._keys: dict[int, None] = {}

    def ask(self, key: int) -> None:
        if key in self._keys:
            del self._keys[key]
        else:
            self.mirror.add(1, "device", [key])
        self._keys[key] = None
        if len(self._keys) > self._capacity:
            oldest = next(iter(self._keys))
            del self._keys[oldest]
            self.mirror.remove(1, "device", [oldest])


def test_room_costs_nothing_and_is_not_full() -> None:
    cache = Cache(1000)
    for key in range(1000):
        cache.ask(key)
    assert cache.mirror.fullness == {}
    assert cache.mirror.eviction.ghosts == {}


def test_what_nobody_asks_for_again_costs_nothing() -> None:
    cache = Cache(1000)
    for key in range(20_000):
        cache.ask(key)
    assert cache.mirror.fullness == {"w": 1.0}
    assert cache.mirror.eviction.price < 0.1


def test_a_working_set_past_the_cache_is_dear_and_one_that_fits_again_is_not() -> None:
    cache, random = Cache(1000), Random(1)
    for _ in range(20_000):
        cache.ask(random.randrange(1300))
    assert cache.mirror.eviction.price > 2
    for key in range(10_000, 30_000):
        cache.ask(key)
    assert cache.mirror.eviction.price < 0.1


def test_a_cache_that_was_cleared_has_room() -> None:
    cache = Cache(1000)
    for key in range(3000):
        cache.ask(key)
    assert cache.mirror.fullness == {"w": 1.0}
    cache.mirror.remove(1, "device", range(2000, 2900))
    assert cache.mirror.fullness == {"w": 0.0}
    cache.mirror.retire_slot(1)
    assert cache.mirror.fullness == {}
    assert cache.mirror.copies == 0


def test_the_host_tier_evicts_nothing_from_the_device() -> None:
    cache = Cache(10)
    cache.mirror.add(1, "host", range(0, 1600, SAMPLE))
    cache.mirror.remove(1, "host", range(0, 1600, SAMPLE))
    assert cache.mirror.eviction.ghosts == {}
    assert cache.mirror.copies == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=2000), st.integers(0, 10_000))
def test_ghosts_are_bounded_and_the_share_is_one(events: list[tuple[bool, int]], held: int) -> None:
    price = EvictionPrice()
    for left, key in events:
        if left:
            price.evicted(key, held)
        elif key in price.ghosts:
            price.returned(key)
        assert len(price.ghosts) <= max(LEAST_GHOSTS, held // SAMPLE)
        assert all(copies > 0 for copies in price.ghosts.values())
        assert 0 <= price.share_returned <= MOST_SHARE
        assert 0 <= price.price <= MOST_SHARE / (1 - MOST_SHARE) + 1e-9
