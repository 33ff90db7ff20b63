"""What tools make of Redis's replies, without Redis."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.inspection.view import (
    Entry,
    age_seconds,
    by_bucket,
    decode_entries,
    extend_match,
    parse_name,
    sets_of,
    slot_of_set,
    spread,
    view_worker,
)
from indexer.layout import MalformedError, Part, to_unsigned
from indexer.reader.mirror import Match, Mirror
from tests.indexer.support import FACTS, POOL


def packed(**changes) -> bytes:
    record = {"v": 1, "slot": 7, "epoch": "00" * 8, "seq": 3, "buckets": {"device": 2, "host": 1}, "token": "t"}
    return msgpack.packb({**record, "facts": FACTS.to_json(), "old": [], **changes})


def entry(**changes) -> Entry:
    return Entry.decode("w", packed(**changes))


@pytest.mark.parametrize("pool", [POOL, "p", "{}", "a/0", "ü:漢", "%7B"])
def test_names_lead_back_to_their_part(pool: str) -> None:
    part = Part(pool, 12)
    assert parse_name(part.key("workers").encode()) == (part, "workers")
    parsed = parse_name(part.bucket_key(2**53, "host", 3).encode())
    assert parsed is not None
    assert parsed[0] == part
    assert slot_of_set(parsed[1]) == 2**53


@pytest.mark.parametrize("name", [b"wr:{p}:flight", b"wr:{p/x}:workers", b"wr:{p/0}:", b"xwr:{p/0}:log", b"\xff"])
def test_other_names_are_nobodys(name: bytes) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize("rest", ["workers", "keys:x:device:0", "keys:1:device", "keys:1:device:0:1", "xkeys:1:host:0"])
def test_other_keys_of_a_part_are_no_sets(rest: str) -> None:
    assert slot_of_set(rest) is None


def test_a_snapshot_under_way_has_a_slot_in_use() -> None:
    assert list(entry().slots) == [7]
    assert entry().next_chunks is None
    under_way = entry(next={"slot": 9, "seq": 4, "chunk": 1, "buckets": {"device": 4}})
    assert list(under_way.slots) == [7, 9]
    assert under_way.next_chunks == 2
    assert list(entry(slot=0, next={"slot": 9, "seq": 4, "chunk": -1, "buckets": {}}).slots) == [9]


def test_a_broken_record_is_said_and_the_others_are_read() -> None:
    entries, problems = decode_entries(
        {b"w": packed(), b"x": b"\xc1", b"y": packed(next={"slot": 1}), b"z": packed(v=9)}
    )
    assert list(entries) == ["w"]
    assert [problem.split(" is malformed")[0] for problem in problems[:2]] == [
        "the record of worker x",
        "the snapshot in the record of worker y",
    ]
    assert "upgrade" in problems[2]
    with pytest.raises(MalformedError):
        entry(next=3)


def test_the_sets_of_a_worker_are_those_of_its_slot() -> None:
    part = Part("p")
    assert sets_of(part, [entry(), entry(slot=0)]) == [
        ("w", "device", part.bucket_key(7, "device", 0)),
        ("w", "device", part.bucket_key(7, "device", 1)),
        ("w", "host", part.bucket_key(7, "host", 0)),
    ]


def test_a_worker_is_late_behind_the_newest_beat_of_its_part_only() -> None:
    def late(own: float, other: float, now: int) -> bool:
        return view_worker(entry(), 0, {}, {"w": own, "x": other}, now).late

    assert not late(1000, 11_000, 11_000)
    assert late(999, 11_000, 11_000)
    # Redis was away for a minute: nobody is late for it.
    assert not late(11_000, 11_000, 71_000)


def test_a_worker_with_its_figures() -> None:
    worker = view_worker(entry(), 3, {"device": 500}, {"w": 4000.0}, 5500)
    assert (worker.part, worker.slot, worker.seq, worker.beat_age_seconds) == (3, 7, 3, 1.5)
    assert worker.tiers["device"].share == 500 / FACTS.capacity["device"]
    assert worker.tiers["host"].keys == 0
    assert view_worker(entry(), 0, {}, {}, 0).beat_age_seconds is None
    assert not view_worker(entry(), 0, {}, {}, 0).late


def test_what_was_written_after_the_clock_was_read_is_new() -> None:
    assert age_seconds(2000, 1500) == 0.0


@given(st.integers(0, 100), st.integers(1, 40))
def test_a_sample_is_spread_over_all(count: int, wanted: int) -> None:
    items = [str(number) for number in range(count)]
    sample = spread(items, wanted)
    assert len(sample) == min(count, wanted)
    assert sample == sorted(set(sample), key=int)
    if sample:
        assert int(sample[-1]) >= count - 1 - count // wanted


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=50), st.integers(1, 7))
def test_every_key_is_looked_up_in_its_bucket(keys: list[int], buckets: int) -> None:
    found = by_bucket(keys, buckets)
    places = {position: (bucket, member) for bucket, wanted in found.items() for position, member in wanted}
    assert set(places) == set(range(len(keys)))
    for position, (bucket, member) in places.items():
        assert to_unsigned(member) == keys[position]
        assert bucket == keys[position] % buckets


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40), st.integers(1, 9))
def test_windows_of_blocks_match_as_the_mirror_does(held: list[tuple[bool, bool]], window: int) -> None:
    keys = [1000 + number for number in range(len(held))]
    mirror = Mirror()
    mirror.open_slot(1)
    mirror.add(1, "device", [key for key, (device, _) in zip(keys, held, strict=True) if device])
    mirror.add(1, "host", [key for key, (_, host) in zip(keys, held, strict=True) if host])
    mirror.set_worker("w", 1, FACTS)
    match, goes_on = Match(0), True
    for first in range(0, len(held), window):
        if goes_on:
            piece = held[first : first + window]
            match, goes_on = extend_match(match, [device for device, _ in piece], [host for _, host in piece])
    assert match == mirror.match(keys).get("w", Match(0))
