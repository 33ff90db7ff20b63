"""Damaged values of Redis and of other gateways: what they say, or a MalformedError, never another error.
`tests.damage.INPUTS` says how many; a failure shows the value."""

from __future__ import annotations

from random import Random

import msgpack
import pytest

from indexer.layout import (
    LogDelta,
    LogDrop,
    LogWorker,
    MalformedError,
    WorkerFacts,
    WorkerRecord,
    decode_entry,
    encode_delta,
)
from tests.damage import INPUTS, damaged

FACTS = WorkerFacts(
    address="10.0.0.1:8100",
    model="m",
    fingerprint="f" * 16,
    engine="vllm",
    engine_version="0.32",
    publishes_events=True,
    index_block_tokens=64,
    engine_block_tokens=16,
    capacity={"device": 100},
).to_json()
RECORD = msgpack.packb({"v": 1, "slot": 3, "epoch": "0" * 16, "seq": 9, "buckets": {"device": 2}, "facts": FACTS})
ENTRIES = [
    {b"v": b"1", b"p": b"1-0", b"k": b"delta", b"w": b"w1", b"s": b"4", b"keys": encode_delta({"device": [1, 2]}, {})},
    {
        b"v": b"1",
        b"p": b"1-0",
        b"k": b"worker",
        b"w": b"w1",
        b"e": b"0" * 16,
        b"s": b"4",
        b"r": b"2",
        b"b": msgpack.packb({"device": 2}),
        b"f": FACTS,
    },
    {b"v": b"1", b"p": b"1-0", b"k": b"drop", b"w": b"w1"},
]
PIECES = [
    b"\xc0",
    b"\x90",
    b"\x80",
    b"\x91" * 600,
    b"\xdd\xff\xff\xff\xff",
    b"\xcb\x7f\xf8" + b"\x00" * 6,
    b"\xcf" + b"\xff" * 8,
    b"9" * 5000,
    b"-1",
    b"1e9",
    b"null",
    b'"',
    b"{",
    b"[" * 600,
    b"\xff",
    b"\x00",
    b"\\ud800",
    b"1_0",
    b" 7 ",
]


@pytest.mark.timeout(120 + INPUTS // 100)
def test_damaged_values_are_read_or_refused() -> None:
    random = Random(10)
    read = refused = 0
    for number in range(INPUTS):
        value: object
        try:
            if number % 3:
                value = fields = dict(ENTRIES[number % len(ENTRIES)])
                name = random.choice(list(fields))
                if random.randrange(8):
                    fields[name] = damaged(random, fields[name], PIECES)
                else:
                    del fields[name]
                previous, entry = decode_entry(fields)
                assert isinstance(previous, str), value
                assert entry is None or isinstance(entry, LogDelta | LogWorker | LogDrop), value
            else:
                value = packed = damaged(random, RECORD, PIECES)
                record = WorkerRecord.decode("w1", packed)
                assert record.slot is not None, value
        except MalformedError:
            refused += 1
        except Exception as error:
            raise AssertionError(value) from error
        else:
            read += 1
    assert read > INPUTS // 20
    assert refused > INPUTS // 20
