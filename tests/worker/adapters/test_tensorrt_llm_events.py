"""TensorRT-LLM's JSON: partial blocks, windows, levels, gaps."""

from __future__ import annotations

from typing import Any

from worker.adapters.events import FULL_ATTENTION_WINDOW, Group, Moved, Removed, Stored
from worker.adapters.tensorrt_llm_events import TensorRtLlmDecoder
from worker.adapters.translate import Translator


def event(number: int, data: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"event_id": number, "window_size": 4096, "data": data, **fields}


def block(block_hash: int, tokens: int, **fields: Any) -> dict[str, Any]:
    ids = [{"token_id": token, "token_extra_id": 0} for token in range(tokens)]
    return {"block_hash": block_hash, "tokens": ids, "cache_level": 0, "priority": 35, **fields}


def stored(*blocks: dict[str, Any], parent: int | None = None) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


CREATED = {"type": "created", "num_blocks_per_cache_level": [10, 5]}


def test_blocks_are_linked_and_the_partial_one_is_left_out() -> None:
    events, missing = TensorRtLlmDecoder().decode(
        [event(0, CREATED), event(1, stored(block(1, 32), block(2, 32), block(3, 5)))]
    )
    first, second = events[0]
    assert isinstance(first, Stored)
    assert isinstance(second, Stored)
    assert (first.block_hashes, first.parent, first.medium) == ((1,), None, "0")
    assert (second.block_hashes, second.parent, len(second.token_ids)) == ((2,), 1, 32)
    assert not missing


def test_levels_and_priorities() -> None:
    level = {"type": "cache_level", "old": 0, "new": 1}
    updates = [
        event(0, {"type": "updated", "block_hash": 7, "cache_level": level, "priority": None}),
        event(1, {"type": "updated", "block_hash": 7, "cache_level": None, "priority": {"old": 1, "new": 2}}),
        event(2, {"type": "removed", "block_hashes": [7, 8]}),
    ]
    events, _ = TensorRtLlmDecoder().decode(updates)
    assert events[0] == [Moved(7, "0", "1", 4096), Removed((7, 8), "0", 4096)]


def test_the_widest_window_counts() -> None:
    decoder, translator = TensorRtLlmDecoder(), Translator(32, most_host_blocks=1)
    both = [event(0, stored(block(1, 32)), window_size=512), event(1, stored(block(9, 32)))]
    events, _ = decoder.decode(both)
    assert events[0][0].group == Group(512, 512)
    assert FULL_ATTENTION_WINDOW > 4096
    (kept,) = translator.translate(events[0])
    assert kept.block_hashes == (9,)


def test_gaps_and_restarts_by_rank() -> None:
    decoder = TensorRtLlmDecoder()
    assert not decoder.decode([event(0, CREATED), event(0, CREATED, attention_dp_rank=1)])[1]
    assert not decoder.decode([event(1, CREATED), event(1, CREATED, attention_dp_rank=1)])[1]
    assert decoder.decode([event(3, CREATED)])[1]
    assert not decoder.decode([event(2, CREATED, attention_dp_rank=1)])[1]
    assert decoder.decode([event(0, CREATED)])[1]
    # Not from the beginning: what came before is unknown.
    assert TensorRtLlmDecoder().decode([event(5, CREATED)])[1]


def test_salts_adapters_and_pictures() -> None:
    fields = {"cache_salt": "s", "lora_id": 3, "mm_keys": [["hash", 4, None], {"hash": "other", "start_offset": 2}]}
    events, _ = TensorRtLlmDecoder().decode([event(0, stored(block(1, 32, **fields)))])
    (found,) = events[0]
    assert (found.salt, found.adapter, found.extras) == ("s", "#3", [[(b"hash", 4), (b"other", 2)]])


def test_one_bad_event_costs_one_event() -> None:
    decoder = TensorRtLlmDecoder()
    bad = [None, 5, {}, event(0, {}), event(1, {"type": "stored"}), event(2, stored({"block_hash": "x", "tokens": []}))]
    events, missing = decoder.decode([*bad, event(3, stored(block(1, 32)))])
    assert len(events[0]) == 1
    assert decoder.undecodable == len(bad)
    assert not missing
