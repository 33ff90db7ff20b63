"""The message between gateways: what is written is read, and nothing else is."""

from __future__ import annotations

from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.state.peer_message import (
    MAX_BYTES,
    MAX_COUNT,
    MAX_KEYS,
    MAX_WORKERS,
    VERSION,
    Kind,
    PeerMessage,
    Predicted,
)

counts = st.integers(0, MAX_COUNT - 1)
names = st.text(min_size=1, max_size=256)
keys = st.lists(st.integers(0, 2**64 - 1), max_size=5)
messages = st.builds(
    PeerMessage,
    sender=names,
    incarnation=st.integers(0, 2**64 - 1),
    number=counts,
    kind=st.sampled_from(Kind),
    totals=st.lists(st.tuples(names, counts, counts), max_size=4),
    predicted=st.lists(st.builds(Predicted, counts, names, keys), max_size=3),
    withdrawn=st.lists(counts, max_size=4),
    live=st.lists(counts, max_size=4),
)


def plain(message: PeerMessage) -> object:
    predicted = [(each.number, each.worker, list(each.keys)) for each in message.predicted]
    head = (message.sender, message.incarnation, message.number, message.kind)
    return (*head, list(message.totals), predicted, list(message.withdrawn), list(message.live))


@given(messages)
def test_what_is_written_is_read(message: PeerMessage) -> None:
    assert plain(PeerMessage.decode(message.encode())) == plain(message)


def test_fields_that_a_later_release_appends_are_skipped() -> None:
    message = PeerMessage("g", 1, 2, Kind.TOTALS, [("w", 3, 4)])
    longer = msgpack.packb([*msgpack.unpackb(message.encode()), {"more": 1}])
    assert plain(PeerMessage.decode(longer)) == plain(message)


FIELDS = [VERSION, "g", 1, 2, 0, ["w", 3, 4], [1, "w", b"k" * 8], [1], [2]]


def with_field(position: int, value: object) -> bytes:
    return msgpack.packb([*FIELDS[:position], value, *FIELDS[position + 1 :]])


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (b"", "incomplete"),
        (b"\x00" * (MAX_BYTES + 1), "at most"),
        (msgpack.packb({"v": 1}), "nine fields"),
        (msgpack.packb(FIELDS[:8]), "nine fields"),
        (with_field(0, 2), "version 2"),
        (with_field(1, ""), "name"),
        (with_field(1, "x" * 257), "name"),
        (with_field(1, b"g"), "name"),
        (with_field(2, -1), "number from 0"),
        (with_field(3, True), "number from 0"),
        (with_field(3, 1.0), "number from 0"),
        (with_field(4, 9), "Kind"),
        (with_field(5, ["w", 3]), "threes"),
        (with_field(5, "abc"), "threes"),
        (with_field(5, ["w", -3, 4]), "number from 0"),
        (with_field(5, ["w", 3, MAX_COUNT]), "number from 0"),
        (with_field(5, ["w", 1, 1] * (MAX_WORKERS + 1)), "at most"),
        (with_field(6, [1, "w", b"k" * 7]), "bytes length"),
        (with_field(6, [1, "w", b"k" * 8 * (MAX_KEYS + 1)]), "keys"),
        (with_field(6, [1, "w", "k"]), "keys"),
        (with_field(7, 5), "list"),
        (with_field(8, ["x"]), "number from 0"),
    ],
)
def test_what_is_no_message_is_refused_with_words(packed: bytes, said: str) -> None:
    PeerMessage.decode(msgpack.packb(FIELDS))
    with pytest.raises(ValueError, match=said):
        PeerMessage.decode(packed)


@given(st.one_of(st.binary(max_size=200), messages.map(PeerMessage.encode)), st.data())
def test_damage_raises_nothing_else(packed: bytes, data: st.DataObject) -> None:
    damaged = bytearray(packed)
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError, TypeError):
        PeerMessage.decode(bytes(damaged))
