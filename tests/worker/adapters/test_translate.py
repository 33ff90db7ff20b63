"""What events mean: tiers, groups of layers, larger host blocks, reports of repeats, adapters that are replaced."""

from __future__ import annotations

import pytest

from indexer.keys import prompt_keys
from tests.worker.adapters.support import FINGERPRINT, Reader
from worker.adapters.engines.tensorrt_llm import LEVELS
from worker.adapters.events import Cleared, EngineEvent, Group, Moved, Removed, Stored
from worker.adapters.msgpack_events import TIERS
from worker.adapters.translate import Translator
from worker.publish.index_blocks import IndexBlocks

LAYERS = (Group(0, 64), Group(1), Group(2))


def run(tokens: list[int], *, block: int = 16, name: str = "", **fields: object) -> Stored:
    """A whole prompt in one event; a block is named by its prefix."""
    names = [f"{name}{tokens[:end]}" for end in range(block, len(tokens) + 1, block)]
    return Stored(names, None, tokens[: len(names) * block], block, **fields)


class Line:
    """Translator and table, and the keys that come out."""

    def __init__(self, index_tokens: int = 16, **bounds: int) -> None:
        self.reader = Reader(16, index_tokens, LEVELS, **bounds)

    def take(self, *events: EngineEvent) -> None:
        self.reader.apply(self.reader.translator.translate(events))

    @property
    def device(self) -> set[int]:
        return self.reader.keys["device"]

    @property
    def host(self) -> set[int]:
        return self.reader.keys["host"]


def keys(tokens: list[int], index_tokens: int = 16, **root: str) -> set[int]:
    return set(prompt_keys(tokens, FINGERPRINT, block_tokens=index_tokens, **root))


PROMPT = list(range(64))


def test_a_block_stored_twice_is_removed_twice() -> None:
    line, event = Line(), run(PROMPT[:16])
    line.take(event, event, Removed(event.block_hashes))
    assert line.device == keys(PROMPT[:16])
    line.take(Removed(event.block_hashes))
    assert line.device == set()


def test_an_unknown_parent_is_no_root() -> None:
    line, event = Line(), run(PROMPT)
    line.take(event._replace(parent="unknown"))
    assert line.device == set()
    assert line.reader.table.orphaned == 4


def test_hybrid_models_count_by_the_group_that_attends_to_everything() -> None:
    line, event = Line(), run(PROMPT)
    sliding = event._replace(block_hashes=event.block_hashes[2:], group=LAYERS[0])
    line.take(event._replace(group=LAYERS[1]), event._replace(group=LAYERS[2]), sliding)
    assert line.device == keys(PROMPT)
    # Blocks outside the window go; what attends to everything stays.
    line.take(Removed(event.block_hashes, "GPU", 0), Removed(event.block_hashes, "GPU", 2))
    assert line.device == keys(PROMPT)
    line.take(Removed(event.block_hashes, "GPU", 1))
    assert line.device == set()


def test_without_full_attention_the_widest_window_counts() -> None:
    line, event = Line(), run(PROMPT)
    line.take(
        event._replace(group=Group(0, 0)), event._replace(group=Group(1, 512)), event._replace(group=Group(2, 64))
    )
    line.take(Removed(event.block_hashes, "GPU", 2), Removed(event.block_hashes, "GPU", 0))
    assert line.device == keys(PROMPT)


def test_a_wider_group_that_comes_later_starts_over() -> None:
    line, event, other = Line(), run(PROMPT), run([7] * 32)
    line.take(event._replace(group=Group(1, 64)))
    line.take(other._replace(group=Group(0)))
    assert line.device == keys([7] * 32)


def test_a_copy_on_the_host_takes_over_when_the_device_evicts() -> None:
    line, event = Line(64), run(PROMPT)
    line.take(event, event._replace(medium="CPU_PINNED"))
    assert (line.device, line.host) == (keys(PROMPT, 64), set())
    # Evicted by halves: an index block that is somewhere as a whole is the host's.
    line.take(Removed(event.block_hashes[2:]))
    assert (line.device, line.host) == (set(), keys(PROMPT, 64))
    line.take(Removed(event.block_hashes[:2]))
    assert (line.device, line.host) == (set(), keys(PROMPT, 64))
    line.take(event)
    assert (line.device, line.host) == (keys(PROMPT, 64), set())
    line.take(Removed(event.block_hashes), Removed(event.block_hashes, "CPU"))
    assert (line.device, line.host) == (set(), set())
    assert len(line.reader.table) == 0


def test_placeholders_without_tokens_are_the_device_blocks_of_the_same_hash() -> None:
    line, event = Line(), run(PROMPT)
    placeholder = Stored(event.block_hashes, None, (), 0, medium="CPU")
    line.take(placeholder)
    assert (line.host, line.reader.table.orphaned) == (set(), 4)
    line.take(event, placeholder, Removed(event.block_hashes))
    assert line.host == keys(PROMPT)


@pytest.mark.parametrize(("shared", "matched"), [(16, 0), (32, 0), (48, 0), (64, 4)])
def test_host_blocks_of_four_engine_blocks_match_as_a_whole(shared: int, matched: int) -> None:
    line = Line()
    large = Stored(["large"], None, PROMPT, 64, medium="CPU")
    line.take(large)
    asked = prompt_keys(PROMPT[:shared] + [9] * (64 - shared), FINGERPRINT, block_tokens=16)
    # The index may know parts of it; an engine that fetches whole blocks of 64 uses four, or none.
    held = [key in line.host for key in asked]
    assert held == [True] * (shared // 16) + [False] * (4 - shared // 16)
    assert (sum(held) == 4) == (matched == 4)
    second = Stored(["larger"], "large", [5] * 64, 64, medium="CPU")
    line.take(second, large, Removed(["large"], "CPU"))
    assert line.host == keys(PROMPT + [5] * 64)
    line.take(Removed(["large"], "CPU"), Removed(["larger"], "CPU"))
    assert line.host == set()
    assert line.reader.translator._large == {}


def test_blocks_on_disks_are_left_out_and_counted() -> None:
    line, event = Line(), run(PROMPT)
    line.take(event._replace(medium="DISK"), event, Removed(event.block_hashes, "STORAGE"))
    assert line.device == keys(PROMPT)
    assert line.reader.translator.ignored == {"medium": 8}


def test_blocks_move_between_tiers() -> None:
    line, event = Line(), run(PROMPT[:16])._replace(medium="0")
    line.take(event, Moved(event.block_hashes[0], "0", "1"))
    assert (line.device, line.host) == (set(), keys(PROMPT[:16]))
    line.take(Moved(event.block_hashes[0], "1", "0"))
    assert (line.device, line.host) == (keys(PROMPT[:16]), set())
    line.take(Moved(event.block_hashes[0], "0", "2"))
    assert (line.device, line.host) == (set(), set())


def test_blocks_of_another_size_are_left_out_and_said() -> None:
    line = Line()
    line.take(run([1] * 64, block=32))
    assert line.device == set()
    assert (line.reader.translator.seen_block_tokens, line.reader.translator.ignored) == (32, {"size": 2})


def test_a_report_of_reused_blocks_adds_no_copies() -> None:
    line, event = Line(), run(PROMPT)
    first = event._replace(block_hashes=event.block_hashes[:3], token_ids=PROMPT[:48])
    last = Stored(event.block_hashes[3:], event.block_hashes[2], PROMPT[48:], 16)
    line.take(event)
    line.take(first, last)
    line.take(Removed(event.block_hashes))
    # The last block was computed twice.
    assert line.device == {prompt_keys(PROMPT, FINGERPRINT, block_tokens=16)[3]}
    assert line.reader.table.holds(event.block_hashes[3])
    line.take(Removed(event.block_hashes[3:]))
    assert len(line.reader.table) == 0


def test_a_report_heals_what_was_missed() -> None:
    line, event = Line(), run(PROMPT)
    first = event._replace(block_hashes=event.block_hashes[:3], token_ids=PROMPT[:48])
    last = Stored(event.block_hashes[3:], event.block_hashes[2], PROMPT[48:], 16)
    line.take(last)
    assert line.device == set()
    line.take(first, last)
    assert line.device == keys(PROMPT)


def test_an_adapter_under_another_number_replaces_the_one_before() -> None:
    line = Line()
    base, old = run(PROMPT), run(PROMPT, name="old", adapter="a", adapter_number=1)
    new = run([3] * 16, name="new", adapter="a", adapter_number=2)
    line.take(base, old)
    assert line.device == keys(PROMPT) | keys(PROMPT, adapter="a")
    line.take(new)
    assert line.device == keys(PROMPT) | keys([3] * 16, adapter="a")


def test_clear_forgets_everything() -> None:
    line = Line()
    line.take(run(PROMPT), Stored(["large"], None, PROMPT, 64, medium="CPU"), Cleared(), run([2] * 16))
    assert (line.device, line.host) == (keys([2] * 16), set())
    assert line.reader.translator._large == {}


def test_what_grows_is_bounded() -> None:
    translator = Translator(16, TIERS, most_host_blocks=3)
    for number in range(10):
        translator.translate([Stored([number], None, [number] * 32, 32, medium="CPU")])
        translator.translate([run(PROMPT, adapter=str(number), adapter_number=number)])
    assert len(translator._large) == 3
    assert translator.ignored == {"size": 7}


def test_copies_beyond_the_cache_are_forgotten_second_copies_first() -> None:
    line = Line(capacity_blocks=8)
    one, other = run([1] * 64), run([2] * 64)
    line.take(one, one)  # 8: as many as there can be
    line.take(run([3] * 16))
    assert line.device == keys([1] * 64) | keys([3] * 16)
    assert line.reader.table.overfull == 4
    line.take(other)  # 9 blocks now: the first of them goes
    assert len(line.device) == 8
    assert line.device >= keys([2] * 64)


def test_ten_million_prefixes_would_leave_memory_within_its_bound() -> None:
    """Removals that never come: the table stays at its bound whatever passes through."""
    table = IndexBlocks(engine_block_tokens=16, index_block_tokens=64, fingerprint="f", capacity_blocks=256)
    from worker.events import BlocksStored
    from worker.publish.index_blocks import Changes

    held: set[int] = set()
    for number in range(2000):
        changes = Changes()
        table.apply([BlocksStored([(number, part) for part in range(4)], None, [number] * 64)], changes)
        held = held - changes.removed | changes.added
        assert len(table) <= 256 * 4
    assert held == table.held()
    assert len(held) <= 64
