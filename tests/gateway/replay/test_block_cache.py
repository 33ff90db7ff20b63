"""The simulated cache: its books balance, and it hits and evicts as a naive list does."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.replay.block_cache import BlockCache


def test_a_prompt_hits_what_an_earlier_one_left() -> None:
    cache = BlockCache(10)
    assert cache.admit([1, 2, 3], 1) == (0, [])
    assert cache.use == 0.4
    cache.release([1, 2, 3], 1)
    assert cache.use == 0
    assert cache.admit([1, 2, 9], 0) == (2, [])


def test_tails_are_evicted_before_heads_and_the_oldest_first() -> None:
    cache = BlockCache(6)
    for keys in ([1, 2, 3], [4, 5, 6]):
        assert cache.admit(keys, 0) is not None
        cache.release(keys, 0)
    assert cache.admit([7], 1) == (0, [3, 2])
    assert cache.leading([1, 2]) == 1


def test_blocks_in_use_are_never_evicted_and_what_does_not_fit_waits() -> None:
    cache = BlockCache(4)
    assert cache.admit([1, 2, 3], 0) is not None
    assert cache.admit([4, 5], 0) is None
    assert cache.admit([1, 2, 4], 0) == (2, [])
    assert cache.admit([], 1) is None


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(12)
        self.running: list[tuple[list[int], int]] = []
        self.cached: list[int] = []

    @rule(family=st.integers(0, 3), length=st.integers(0, 6), unnamed=st.integers(0, 3))
    def admit(self, family: int, length: int, unnamed: int) -> None:
        keys = [family * 10 + place for place in range(length)]
        used = {key for running, _ in self.running for key in running}
        admitted = self.cache.admit(keys, unnamed)
        total = len(used | set(keys)) + unnamed + sum(count for _, count in self.running)
        assert (admitted is None) == (total > 12)
        if admitted is None:
            return
        hits = 0
        while hits < length and (keys[hits] in used or keys[hits] in self.cached):
            hits += 1
        self.cached = [key for key in self.cached if key not in keys]
        excess = max(0, total + len(self.cached) - 12)
        assert admitted == (hits, self.cached[:excess])
        self.cached = self.cached[excess:]
        self.running.append((keys, unnamed))

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 99))
    def release(self, place: int) -> None:
        keys, unnamed = self.running.pop(place % len(self.running))
        self.cache.release(keys, unnamed)
        used = {key for running, _ in self.running for key in running}
        self.cached += [key for key in reversed(keys) if key not in used]

    @invariant()
    def books_balance(self) -> None:
        self.cache.check()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
