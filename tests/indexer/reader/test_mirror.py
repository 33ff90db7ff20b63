"""The mirror against its naive twin, and the situations that a bitmap walk could get wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from indexer.layout import WorkerFacts
from indexer.reader.mirror import SHARDS, SWEEP_KEYS, Match, Mirror
from tests.indexer.reader.naive_mirror import NaiveMirror

FACTS = WorkerFacts("127.0.0.1:1", "m", "builtin", "0", 16, 64, "f", publishes_events=True)
A, B, C, X = 11, 2**63 + 5, 2**64 - 1, 4096


def mirror_with(**workers: Iterable[int]) -> Mirror:
    mirror = Mirror()
    for slot, (worker, keys) in enumerate(workers.items(), start=1):
        mirror.open_slot(slot)
        mirror.add(slot, "device", keys)
        mirror.set_worker(worker, slot, FACTS)
    return mirror


def test_a_gap_ends_the_match() -> None:
    mirror = mirror_with(x=[A, C], y=[B])
    assert mirror.match([A, B, C]) == {"x": Match(1)}


def test_a_key_held_behind_another_parent_does_not_match() -> None:
    mirror = mirror_with(w1=[A, B], w2=[X, C])
    assert mirror.match([A, C]) == {"w1": Match(1)}


def test_equal_ends_with_an_unequal_middle_match_one_block() -> None:
    stored, asked = list(range(100, 165)), list(range(1100, 1165))
    asked[0], asked[64] = stored[0], stored[64]
    assert mirror_with(w=stored).match(asked) == {"w": Match(1)}


def test_no_keys_no_match() -> None:
    assert mirror_with(w=[A]).match([]) == {}
    assert Mirror().match([A]) == {}


def test_a_slot_matches_only_once_it_is_attached() -> None:
    mirror = Mirror()
    mirror.open_slot(1)
    mirror.add(1, "device", [A])
    assert mirror.match([A]) == {}
    mirror.set_worker("w", 1, FACTS)
    assert mirror.match([A]) == {"w": Match(1)}


def test_a_restart_in_place_scores_zero_at_once() -> None:
    mirror = mirror_with(w=[A, B])
    mirror.set_worker("w", 0, FACTS)
    assert mirror.match([A]) == {}
    assert "w" in mirror.workers


def test_host_blocks_are_counted_in_their_best_tier() -> None:
    mirror = mirror_with(w=[A, C])
    mirror.add(1, "host", [A, B])
    assert mirror.match([A, B, C]) == {"w": Match(3, host_blocks=1)}


def test_positions_are_reused_after_their_sweep_only() -> None:
    mirror = mirror_with(old=[A, B])
    mirror.drop_worker("old")
    mirror.open_slot(2)
    mirror.add(2, "device", [A])
    mirror.set_worker("new", 2, FACTS)
    assert mirror.match([A, B]) == {"new": Match(1)}
    while mirror.sweep():
        pass
    mirror.open_slot(3)
    mirror.set_worker("third", 3, FACTS)
    assert len(mirror._bits) == 2
    assert mirror.match([A, B]) == {"new": Match(1)}
    assert mirror.size == 1


def test_the_key_limit_gives_up_the_host_tier_first_then_counts() -> None:
    mirror = Mirror(key_limit=4)
    mirror.open_slot(1)
    mirror.set_worker("w", 1, FACTS)
    mirror.add(1, "host", range(10))
    assert (mirror.size, mirror.refused_keys, mirror.host_indexed) == (4, 6, True)
    mirror.add(1, "device", range(100, 106))
    assert (mirror.size, mirror.refused_keys, mirror.host_indexed) == (4, 8, False)
    mirror.add(1, "host", [1])
    assert mirror.tier_size("host") == 0


def test_a_thousand_workers() -> None:
    keys = list(range(64))
    mirror = mirror_with(**{f"w{number}": keys[: number % 64 + 1] for number in range(1000)})
    assert mirror.match(keys) == {f"w{number}": Match(number % 64 + 1) for number in range(1000)}


@given(
    st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=6),
    st.lists(st.sets(st.integers(0, 12)), min_size=6, max_size=6),
    st.lists(st.integers(0, 12), unique=True),
)
def test_match_equals_the_naive_twin(device: list[set[int]], host: list[set[int]], keys: list[int]) -> None:
    mirror, naive = mirror_with(**{f"w{number}": held for number, held in enumerate(device)}), NaiveMirror()
    for number, held in enumerate(device):
        mirror.add(number + 1, "host", host[number])
        naive.open_slot(number + 1)
        naive.set_worker(f"w{number}", number + 1, FACTS)
        naive.add(number + 1, "device", held)
        naive.add(number + 1, "host", host[number])
    assert mirror.match(keys) == naive.match(keys)


class MirrorMachine(RuleBasedStateMachine):
    """Random operations on both twins; after each they hold and match the same."""

    workers = st.sampled_from(["a", "b", "c"])
    # Keys that share shards and keys that do not.
    keys = st.lists(st.sampled_from([1, 1 + SHARDS, 1 + 2 * SHARDS, 2, 3, 2**64 - 1]), max_size=5)
    tiers = st.sampled_from(["device", "host"])

    def __init__(self) -> None:
        super().__init__()
        self.mirror, self.naive = Mirror(), NaiveMirror()
        self.last_slot = 0

    @rule(worker=workers, device=keys, host=keys)
    def snapshot(self, worker: str, device: list[int], host: list[int]) -> None:
        self.last_slot += 1
        for twin in (self.mirror, self.naive):
            twin.open_slot(self.last_slot)
            twin.add(self.last_slot, "device", device)
            twin.add(self.last_slot, "host", host)
            twin.set_worker(worker, self.last_slot, FACTS)

    @rule(worker=workers, tier=tiers, added=keys, removed=keys)
    def delta(self, worker: str, tier: str, added: list[int], removed: list[int]) -> None:
        slot = self.naive.slot(worker)
        for twin in (self.mirror, self.naive):
            twin.remove(slot, tier, removed)
            twin.add(slot, tier, added)

    @rule(worker=workers)
    def restart(self, worker: str) -> None:
        for twin in (self.mirror, self.naive):
            twin.set_worker(worker, 0, FACTS)

    @rule(worker=workers)
    def drop(self, worker: str) -> None:
        self.mirror.drop_worker(worker)
        self.naive.drop_worker(worker)

    @rule()
    def sweep(self) -> None:
        self.mirror.sweep()

    @invariant()
    def holds_the_same(self) -> None:
        assert set(self.mirror.workers) == set(self.naive.workers)
        for worker in self.naive.workers:
            for tier in ("device", "host"):
                assert set(self.mirror.held(worker, tier)) == set(self.naive.held(worker, tier))
        asked = [1, 1 + SHARDS, 2, 3]
        assert self.mirror.match(asked) == self.naive.match(asked)

    def teardown(self) -> None:
        while self.mirror.sweep():
            pass
        for tier in ("device", "host"):
            assert self.mirror.tier_size(tier) == self.naive.tier_size(tier)


TestMirrorMachine = MirrorMachine.TestCase
TestMirrorMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_sweeping_is_in_slices() -> None:
    mirror = mirror_with(w=range(SHARDS * 2))
    mirror.drop_worker("w")
    slices = 1
    while mirror.sweep():
        slices += 1
    assert slices > SHARDS * 2 // SWEEP_KEYS
    assert mirror.size == 0


@pytest.mark.parametrize("slot", [0, 99])
def test_keys_of_slots_that_are_not_open_are_ignored(slot: int) -> None:
    mirror = Mirror()
    mirror.add(slot, "device", [A])
    mirror.remove(slot, "device", [A])
    assert mirror.size == 0


def test_a_million_prefixes_pass_through_and_memory_stays_bounded() -> None:
    window, prefixes = 20_000, 1_000_000
    mirror = Mirror()
    mirror.open_slot(1)
    mirror.set_worker("w", 1, FACTS)

    def scattered(number: int) -> int:
        return number * 0x9E3779B97F4A7C15 % (1 << 64)

    def table_bytes() -> int:
        return sum(map(sys.getsizeof, mirror._tiers["device"]))

    for first in range(0, window, 1000):
        mirror.add(1, "device", map(scattered, range(first, first + 1000)))
    filled = table_bytes()
    for first in range(window, prefixes, 1000):
        mirror.remove(1, "device", map(scattered, range(first - window, first - window + 1000)))
        mirror.add(1, "device", map(scattered, range(first, first + 1000)))
    assert mirror.size == window
    assert table_bytes() <= 2 * filled
