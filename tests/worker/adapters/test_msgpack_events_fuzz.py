"""Damaged messages of engines: events of the right types, or a DecodeError, never another error.
`tests.damage.INPUTS` says how many; a failure shows the message."""

from __future__ import annotations

from random import Random

import msgpack
import pytest

from tests.damage import INPUTS, damaged
from worker.adapters.events import Cleared, DecodeError, Removed, Stored
from worker.adapters.msgpack_events import decode_batch

STORED = {
    "type": "BlockStored",
    "block_hashes": [1, b"\x02" * 32],
    "parent_block_hash": None,
    "token_ids": list(range(32)),
    "block_size": 16,
    "lora_name": "sql",
    "medium": "GPU",
    "extra_keys": [["sql"], None],
}
SEEDS = [
    msgpack.packb([1.5, [STORED, {"type": "BlockRemoved", "block_hashes": [1]}, {"type": "AllBlocksCleared"}], 0]),
    msgpack.packb(
        [2.5, [["BlockStored", [1, 2], 7, list(range(32)), 16, None, "CPU"], ["BlockRemoved", [3], "GPU"]], None]
    ),
    msgpack.packb({"ts": 3, "events": [STORED], "data_parallel_rank": 1}),
]
PIECES = [
    b"\xc0",
    b"\xc3",
    b"\xcb" + b"\x7f\xf0" + b"\x00" * 6,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff",
    b"\xd4\x00\x00",
    b"\x90",
    b"\x80",
    b"\x91" * 60,
    b"\x81\x90\x90",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\x00" * 7,
    b"\xa4type",
    b"\xc1",
    b"\xa0",
    b"\xc4\x00",
    b"\xff",
    b"\x7f",
]


@pytest.mark.timeout(120 + INPUTS // 100)
def test_damaged_messages_are_decoded_or_refused() -> None:
    random = Random(9)
    decoded = refused = 0
    for number in range(INPUTS):
        message = damaged(random, SEEDS[number % len(SEEDS)], PIECES)
        try:
            batch = decode_batch(message)
        except DecodeError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(message) from error
        decoded += 1
        assert isinstance(batch.at, float), message
        for event in batch.events:
            assert isinstance(event, Stored | Removed | Cleared), message
            if isinstance(event, Stored):
                assert event.block_tokens >= 0, message
                assert isinstance(event.adapter, str), message
    assert decoded > INPUTS // 100
    assert refused > INPUTS // 20
