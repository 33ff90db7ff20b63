"""TensorRT-LLM's JSON: partial blocks, windows, levels, gaps."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.adapters.support import JUNK, Reader, replaced
from worker.adapters.engines.tensorrt_llm import LEVELS, TensorRtLlmDecoder
from worker.adapters.events import FULL_ATTENTION_WINDOW, Group, Moved, Removed, Stored
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
    found = TensorRtLlmDecoder(32).decode(
        [event(0, CREATED), event(1, stored(block(1, 32), block(2, 32), block(3, 5)))]
    )
    first, second = found[0].events
    assert isinstance(first, Stored)
    assert isinstance(second, Stored)
    assert (first.block_hashes, first.parent, first.medium) == ((1,), None, "0")
    assert (second.block_hashes, second.parent, len(second.token_ids)) == ((2,), 1, 32)
    assert not found[0].missing


def test_what_is_whole_is_known_from_settings_until_a_block_before_another_says_better() -> None:
    decoder, translator = TensorRtLlmDecoder(32), Translator(32, LEVELS, most_host_blocks=1)
    assert decoder.decode([event(0, stored(block(1, 5)))])[0].events == []
    found = decoder.decode([event(1, stored(block(2, 16), block(3, 16), block(4, 3)))])
    assert [one.block_hashes for one in found[0].events] == [(2,), (3,)]
    translator.translate(found[0].events)
    assert translator.seen_block_tokens == 16
    assert [len(one.token_ids) for one in decoder.decode([event(2, stored(block(5, 64)))])[0].events] == [64]


def test_levels_and_priorities() -> None:
    level = {"type": "cache_level", "old": 0, "new": 1}
    updates = [
        event(0, {"type": "updated", "block_hash": 7, "cache_level": level, "priority": None}),
        event(1, {"type": "updated", "block_hash": 7, "cache_level": None, "priority": {"old": 1, "new": 2}}),
        event(2, {"type": "removed", "block_hashes": [7, 8]}),
    ]
    found = TensorRtLlmDecoder(32).decode(updates)
    assert found[0].events == [Moved(7, "0", "1", 4096), Removed((7, 8), None, 4096)]


def test_the_widest_window_counts() -> None:
    decoder, translator = TensorRtLlmDecoder(32), Translator(32, LEVELS, most_host_blocks=1)
    both = [event(0, stored(block(1, 32)), window_size=512), event(1, stored(block(9, 32)))]
    events = decoder.decode(both)[0].events
    assert events[0].group == Group(512, 512)
    assert FULL_ATTENTION_WINDOW > 4096
    (kept,) = translator.translate(events)
    assert kept.block_hashes == (9,)


def test_gaps_and_restarts_by_rank() -> None:
    decoder = TensorRtLlmDecoder(32)

    def missing(*events: dict[str, Any]) -> list[int]:
        return [rank for rank, drained in decoder.decode(list(events)).items() if drained.missing]

    assert missing(event(0, CREATED), event(0, CREATED, attention_dp_rank=1)) == []
    assert missing(event(1, CREATED), event(1, CREATED, attention_dp_rank=1)) == []
    assert missing(event(3, CREATED), event(2, CREATED, attention_dp_rank=1)) == [0]
    assert missing(event(0, CREATED)) == [0]
    # Not from the beginning: what came before is unknown.
    decoder = TensorRtLlmDecoder(32)
    assert missing(event(5, CREATED)) == [0]


def test_what_came_before_a_gap_is_not_told() -> None:
    """It may have been removed by what is missing."""
    found = TensorRtLlmDecoder(32).decode([event(0, stored(block(1, 32))), event(2, stored(block(2, 32)))])
    assert found[0].missing
    assert [one.block_hashes for one in found[0].events] == [(2,)]


def test_removals_reach_blocks_on_any_level() -> None:
    """An event of a removal does not say which."""
    decoder, reader = TensorRtLlmDecoder(4), Reader(4, 16, LEVELS)
    level = {"type": "cache_level", "old": 0, "new": 1}
    moved = [event(number + 1, {"type": "updated", "block_hash": number, "cache_level": level}) for number in (1, 2)]
    blocks = [block(number, 4) for number in range(4)]
    for events in ([event(0, CREATED), event(1, stored(*blocks))], moved):
        reader.apply(reader.translator.translate(decoder.decode(events)[0].events))
    assert (len(reader.keys["device"]), len(reader.keys["host"])) == (0, 1)
    gone = event(4, {"type": "removed", "block_hashes": [0, 1, 2, 3]})
    reader.apply(reader.translator.translate(decoder.decode([gone])[0].events))
    assert (reader.keys["host"], len(reader.table), reader.table.skipped) == (set(), 0, 0)


def test_salts_adapters_and_pictures() -> None:
    fields = {"cache_salt": "s", "lora_id": 3, "mm_keys": [["hash", 4, None], {"hash": "other", "start_offset": 2}]}
    (found,) = TensorRtLlmDecoder(32).decode([event(0, stored(block(1, 32, **fields)))])[0].events
    assert (found.salt, found.adapter, found.extras) == ("s", "#3", [[(b"hash", 4), (b"other", 2)]])


def test_one_bad_event_costs_one_event() -> None:
    decoder = TensorRtLlmDecoder(32)
    bad = [None, 5, {}, event(0, {}), event(1, {"type": "stored"}), event(2, stored({"block_hash": "x", "tokens": []}))]
    found = decoder.decode([*bad, event(3, stored(block(1, 32)))])
    assert len(found[0].events) == 1
    assert decoder.undecodable == len(bad)
    assert not found[0].missing


@given(junk=JUNK, place=st.integers(0, 200), answer=JUNK)
@settings(max_examples=1000, deadline=None)
def test_any_wrong_shape_costs_its_event_at_most(junk: Any, place: int, answer: Any) -> None:
    """Junk anywhere in good events; then a good one is read all the same."""
    fields = {"cache_salt": "s", "lora_id": 3, "mm_keys": [["hash", 4], {"hash": "other", "start_offset": 2}]}
    level = {"type": "cache_level", "old": 0, "new": 1}
    good = [
        event(0, stored(block(1, 4, **fields), block(2, 4), parent=9), attention_dp_rank=0),
        event(1, {"type": "updated", "block_hash": 1, "cache_level": level}),
        event(2, {"type": "removed", "block_hashes": [1, 2]}),
    ]
    decoder, reader = TensorRtLlmDecoder(4), Reader(4, 16, LEVELS)
    decoder.decode(answer)
    for events in (replaced(good, place, junk), [event(3, stored(block(7, 4)))]):
        for drained in decoder.decode(events).values():
            reader.apply(reader.translator.translate(drained.events))
