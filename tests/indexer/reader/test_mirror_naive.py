"""The naive twin by itself: what it says of small cases is plain to see. That both twins agree is in test_mirror."""

from __future__ import annotations

from indexer.layout import WorkerFacts
from indexer.reader.mirror import Match
from tests.indexer.reader.naive_mirror import NaiveMirror

FACTS = WorkerFacts("127.0.0.1:1", "m", "builtin", "0", 16, 64, "f", publishes_events=True)


def naive() -> NaiveMirror:
    """Worker a holds 1, 2, 4 on the device and 3 on the host; b holds 1 and 3 on the device."""
    mirror = NaiveMirror()
    for slot, worker, device in ((1, "a", [1, 2, 4]), (2, "b", [1, 3])):
        mirror.open_slot(slot)
        mirror.add(slot, "device", device)
        mirror.set_worker(worker, slot, FACTS)
    mirror.add(1, "host", [3])
    return mirror


def test_leading_blocks_are_counted_in_their_best_tier() -> None:
    assert naive().match([1, 2, 3, 4, 5]) == {"a": Match(4, host_blocks=1), "b": Match(1)}
    assert naive().match([2, 1]) == {"a": Match(2)}
    assert naive().match([]) == {}


def test_removed_keys_end_a_match() -> None:
    mirror = naive()
    mirror.remove(1, "device", [2])
    mirror.remove(9, "device", [1])
    assert mirror.match([1, 2]) == {"a": Match(1), "b": Match(1)}
    assert set(mirror.held("a", "device")) == {1, 4}


def test_a_replaced_or_dropped_slot_holds_nothing() -> None:
    mirror = naive()
    mirror.set_worker("a", 0, FACTS)
    mirror.drop_worker("b")
    mirror.add(1, "device", [1])
    assert mirror.match([1]) == {}
    assert (mirror.workers, mirror.slots, mirror.slot("a"), mirror.size) == ({"a": FACTS}, {"a": 0}, 0, 0)
    assert list(mirror.held("a", "device")) == []
    assert not mirror.sweep()


def test_sizes_count_distinct_keys_of_each_tier() -> None:
    assert (naive().tier_size("device"), naive().tier_size("host"), naive().size) == (4, 1, 5)
    assert naive().facts("a") == FACTS
    assert naive().facts("c") is None
