"""One decoder for every way in which vLLM and SGLang have written their events."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.keys import prompt_keys
from tests.worker.adapters.support import FINGERPRINT, JUNK, Reader, replaced, scenario
from worker.adapters.events import Cleared, DecodeError, Group, Removed, Stored
from worker.adapters.msgpack_events import decode_batch

TOKENS = list(range(32))


def pack(*events: object, rank: int | None = 0) -> bytes:
    return msgpack.packb([1.5, list(events), rank])


def stored(**fields: object) -> dict[str, object]:
    base = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": TOKENS}
    return {**base, "block_size": 16, **fields}


def one(event: object) -> Stored:
    (decoded,) = decode_batch(pack(event)).events
    assert isinstance(decoded, Stored)
    return decoded


@pytest.mark.parametrize(
    "event",
    [
        stored(),
        stored(lora_id=None, medium="GPU", lora_name=None, extra_keys=[None, None], group_idx=0, a_new_field={"x": 1}),
        ["BlockStored", [1, 2], None, TOKENS, 16, None],
        ["BlockStored", [1, 2], None, TOKENS, 16, None, "GPU", None, [None, None], 0, "full_attention", None],
        ["BlockStored", [1, 2], None, TOKENS, 16, None, "GPU", None, None, 0, "full_attention", None, "a", "new", 1],
    ],
)
def test_maps_and_arrays_of_all_lengths_say_the_same(event: object) -> None:
    decoded = one(event)
    assert decoded._replace(medium="") == Stored([1, 2], None, TOKENS, 16)


def test_a_batch_may_be_a_map_and_may_lack_its_rank() -> None:
    for batch in ({"ts": 2, "events": [stored()], "data_parallel_rank": 3, "more": 1}, [2, [stored()], 3]):
        decoded = decode_batch(msgpack.packb(batch))
        assert (decoded.at, len(decoded.events)) == (2.0, 1)
    assert decode_batch(msgpack.packb([2.0, []])).events == []


def test_one_bad_event_costs_one_event() -> None:
    bad = [
        None, 7, [], {}, "x", ["BlockStored"], stored(block_hashes="x"), stored(block_hashes=[None]),
        stored(parent_block_hash=1.5), stored(lora_name=3), stored(extra_keys=[[1.5]]), stored(block_size="16"),
        ["BlockRemoved", 5], {"type": 4},
    ]  # fmt: skip
    decoded = decode_batch(pack(stored(), *bad, ["BlockRemoved", [1]]))
    assert [type(event) for event in decoded.events] == [Stored, Removed]
    assert (decoded.undecodable, decoded.ignored) == (len(bad), 0)


def test_events_of_later_kinds_are_ignored() -> None:
    decoded = decode_batch(pack({"type": "BlockPinned"}, ["SomethingNew", 1], {"type": "AllBlocksCleared"}))
    assert (decoded.events, decoded.ignored, decoded.undecodable) == ([Cleared()], 2, 0)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93", msgpack.packb(5), msgpack.packb(["x", []]), b"\x91" * 5000])
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_batch(payload)


def test_hashes_may_be_signed_unsigned_or_bytes() -> None:
    hashes = [-5, 1 << 63, b"\x00" * 32]
    event = stored(block_hashes=hashes, parent_block_hash=b"p", token_ids=[0] * 48)
    assert (list(one(event).block_hashes), one(event).parent) == (hashes, b"p")


@pytest.mark.parametrize(
    ("fields", "adapter", "salt"),
    [
        ({"extra_keys": [["s"], None]}, "", "s"),
        ({"extra_keys": [["a"], ["a"]], "lora_name": "a", "lora_id": 1}, "a", ""),
        ({"extra_keys": [["a"], ["a"]], "lora_id": 1}, "a", ""),
        ({"extra_keys": [["a", "s"], ["a"]], "lora_name": "a"}, "a", "s"),
        ({"extra_keys": [["a", "a"], ["a"]], "lora_name": "a"}, "a", "a"),
        ({"extra_keys": [[["lora", "a", "/p"], ["cache_salt", "s"]], [["lora", "a", "/p"]]]}, "a", "s"),
        ({"cache_salt": "s", "lora_name": "a"}, "a", "s"),
        ({"lora_id": 7}, "#7", ""),
        ({"extra_keys": [["m@x/y: z"], None]}, "", "m@x/y: z"),
    ],
)
def test_adapter_and_salt(fields: dict, adapter: str, salt: str) -> None:
    event = one(stored(**fields))
    assert (event.adapter, event.salt, event.extras) == (adapter, salt, None)


def test_pictures_stand_on_the_blocks_that_they_overlap() -> None:
    event = one(stored(extra_keys=[["s", ["pic", 4]], [["mm", "pic", -12]]]))
    assert (event.salt, event.extras) == ("s", [[(b"pic", 4)], [(b"pic", -12)]])
    # Not a root: a bare text can only be a digest of embeddings.
    event = one(stored(parent_block_hash=9, extra_keys=[["digest"], None]))
    assert (event.salt, event.extras) == ("", [[(b"digest", 0)], []])


@pytest.mark.parametrize(
    ("fields", "group"),
    [
        ({}, Group()),
        ({"group_idx": 0, "kv_cache_spec_kind": "mla_attention"}, Group()),
        ({"group_idx": 2, "kv_cache_spec_kind": "full_attention"}, Group(2)),
        ({"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 64}, Group(1, 64)),
        ({"group_idx": 1, "kv_cache_spec_kind": "mamba"}, Group(1, 0)),
    ],
)
def test_groups(fields: dict, group: Group) -> None:
    assert one(stored(**fields)).group == group


def test_pairs_of_tokens_give_the_first_of_each() -> None:
    pairs = [[token, token + 1] for token in TOKENS]
    assert one(stored(token_ids=pairs)).token_ids == TOKENS


@pytest.mark.parametrize("index_tokens", [16, 32])
def test_a_captured_picture_is_in_the_keys_of_the_blocks_that_it_overlaps(index_tokens: int) -> None:
    found = scenario("vllm-events", "inproc-0.32-multimodal")
    reader, expected = Reader(16, index_tokens), set()
    for frames in found.frames:
        reader.message(frames)
    for request in found.about["requests"]:
        tokens = request["prompt_token_ids"][: len(request["prompt_token_ids"]) // 16 * 16]
        extras: dict[int, list[tuple[bytes, int]]] = {}
        for block in range(len(tokens) // index_tokens):
            for item in request["mm"]:
                begin, end = block * index_tokens, (block + 1) * index_tokens
                if item["offset"] < end and item["offset"] + item["length"] > begin:
                    extras.setdefault(block, []).append((item["identifier"].encode(), item["offset"] - begin))
        salt = request["cache_salt"] or ""
        expected |= set(prompt_keys(tokens, FINGERPRINT, block_tokens=index_tokens, salt=salt, extras=extras))
    assert reader.keys["device"] == expected


EVERY_FIELD = {
    "lora_id": 1,
    "medium": "GPU",
    "lora_name": "a",
    "extra_keys": [["a", ["img", 3], "salt"], ["a"]],
    "group_idx": 0,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 128,
}
GOOD = [
    stored(**EVERY_FIELD),
    stored(block_hashes=[b"3", b"4"], medium="CPU", block_size=32, token_ids=TOKENS * 2, extra_keys=None),
    ["BlockStored", [5, 6], None, TOKENS, *[16, *EVERY_FIELD.values()]],
    {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 0},
    ["BlockRemoved", [5], "GPU", 0],
]


@given(junk=JUNK, place=st.integers(0, 500))
@settings(max_examples=2000, deadline=None)
def test_any_wrong_shape_costs_its_event_at_most(junk: Any, place: int) -> None:
    """Junk anywhere in good events: decoder, translator and table take what is left, and never raise."""
    reader = Reader(16, 64)
    try:
        batch = decode_batch(msgpack.packb([1.5, replaced(GOOD, place, junk), 0]))
    except DecodeError:
        return
    assert batch.undecodable <= len(GOOD)
    reader.apply(reader.translator.translate(batch.events))
    (again,) = decode_batch(pack(stored(block_hashes=[8, 9]))).events
    reader.apply(reader.translator.translate([again]))


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": [[]] * 32},
        {"token_ids": b"a" * 32},
        {"token_ids": "a" * 32},
        {"group_idx": float("inf")},
        {"block_size": -16},
        {"extra_keys": [[["image", 0]]]},
        {"extra_keys": [[["image", 0]]] * 3},
    ],
)
def test_fields_that_cannot_be_meant_cost_their_event(fields: dict[str, Any]) -> None:
    batch = decode_batch(pack(stored(**fields), stored()))
    assert (batch.undecodable, len(batch.events)) == (1, 1)


@pytest.mark.parametrize("payload", [b"\x93\x01\x91\x81\x90\x01\x00", b"\x81\x80\x01", b"\x91" * 5000])
def test_msgpack_that_python_cannot_hold_is_no_batch(payload: bytes) -> None:
    """A list or a map as a key; lists in lists without end."""
    with pytest.raises(DecodeError):
        decode_batch(payload)


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_a_time_that_is_none_is_no_batch(at: float) -> None:
    """Times tell repeats from restarts."""
    with pytest.raises(DecodeError):
        decode_batch(msgpack.packb([at, [], 0]))


def test_a_huge_block_is_not_made_into_parts() -> None:
    """Its size is one number of an event; the tokens that it would have are not there."""
    reader = Reader(16, 64)
    (event,) = decode_batch(pack(stored(block_size=1 << 50, medium="CPU"))).events
    assert reader.translator.translate([event]) == []
    assert reader.translator.ignored == {"size": 2}


NESTED = b"\x91" * 100_000 + b"\x90"


@pytest.mark.parametrize(
    "payload",
    [
        b"\x93\x01\xdd\x01\x31\x2d\x00" + b"\x90" * 20_000_000 + b"\x00",
        b"\x93\x01\xdd\x00\x98\x96\x80" + b"\x90" * 10_000_000 + b"\x00",
        b"\x93\x01\xdd\x00\x10\x00\x00" + b"\x80" * 0x100000 + b"\x00",
        b"\x93\x01" + NESTED + b"\x00",
        b"\x93\x01\xdd\xff\xff\xff\xff\x00",
        msgpack.packb([1.0, [stored(token_ids=[1] * 3_000_000)], 0]),
        msgpack.packb([1.0, [stored(extra_keys=[[[]] * 3] * 100_000)], 0]),
    ],
    ids=["20 MB of lists", "10 MB of lists", "maps", "depth", "announced", "one long list", "extra keys"],
)
def test_a_message_that_would_become_gigabytes_is_refused_at_once(payload: bytes) -> None:
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(DecodeError):
            decode_batch(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 5  # traced; a tenth of that without
    assert peak < 64_000_000


def test_the_longest_real_message_passes() -> None:
    """A prompt of a million tokens, with hashes of 32 bytes and extra keys on each block."""
    blocks = 62_500
    event = stored(
        block_hashes=[number.to_bytes(32, "big") for number in range(blocks)],
        token_ids=list(range(16 * blocks)),
        extra_keys=[["salt"]] + [None] * (blocks - 1),
    )
    assert len(one(event).token_ids) == 1_000_000
