"""Engine events to keys, against a naive twin that knows every block's whole prefix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from indexer.keys import prompt_keys
from worker.events import BlockRemoved, BlockStored, CacheCleared
from worker.publish.index_blocks import Changes, IndexBlocks, capacity_keys

FINGERPRINT = "f"


def table(engine: int = 16, index: int = 64) -> IndexBlocks:
    return IndexBlocks(engine_block_tokens=engine, index_block_tokens=index, fingerprint=FINGERPRINT)


def store(tokens: list[int], *, engine: int = 16, salt: str = "", adapter: str = "") -> list[BlockStored]:
    """Events of a whole prompt; a block's hash is its prefix."""
    events, parent = [], None
    for end in range(engine, len(tokens) + 1, engine):
        name = repr((salt, adapter, tokens[:end])).encode()
        first = {"salt": salt, "adapter": adapter} if parent is None else {}
        events.append(BlockStored(name, parent, tokens[end - engine : end], **first))
        parent = name
    return events


def removal(event: BlockStored) -> BlockRemoved:
    return BlockRemoved(event.block_hash)


def test_a_key_needs_all_its_engine_blocks() -> None:
    blocks, changes, events = table(), Changes(), store(list(range(64)))
    blocks.apply(events[:3], changes)
    assert not changes
    blocks.apply(events[3:], changes)
    assert changes.added == set(prompt_keys(range(64), FINGERPRINT))
    changes = Changes()
    blocks.apply([removal(events[1])], changes)
    assert changes.removed == set(prompt_keys(range(64), FINGERPRINT))
    # Stored again under the same hash while its descendants stayed: held again.
    blocks.apply([events[1]], changes)
    assert not changes
    assert blocks.held() == set(prompt_keys(range(64), FINGERPRINT))


def test_two_copies_are_removed_twice() -> None:
    blocks, changes, events = table(64), Changes(), store(list(range(64)), engine=64)
    blocks.apply([*events, *events, removal(events[0])], changes)
    assert changes.added == set(prompt_keys(range(64), FINGERPRINT))
    blocks.apply([removal(events[0])], changes)
    assert not changes
    assert len(blocks) == 0


def test_an_unknown_parent_is_left_out_and_counted() -> None:
    blocks, changes = table(), Changes()
    blocks.apply(store(list(range(128)))[1:], changes)
    assert not changes
    assert (blocks.orphaned, len(blocks)) == (7, 0)


def test_one_bad_event_costs_one_event() -> None:
    blocks, changes, events = table(), Changes(), store(list(range(64)))
    bad = [BlockStored(b"short", None, [1, 2]), BlockRemoved(b"unknown")]
    blocks.apply([bad[0], *events, bad[1]], changes)
    assert changes.added == set(prompt_keys(range(64), FINGERPRINT))
    assert blocks.skipped == 2


def test_salt_and_adapter_are_inherited_from_the_first_block() -> None:
    blocks, changes = table(), Changes()
    blocks.apply(store(list(range(128)), salt="s", adapter="a"), changes)
    assert changes.added == set(prompt_keys(range(128), FINGERPRINT, salt="s", adapter="a"))


def test_clear_forgets_everything_before_it() -> None:
    blocks, changes, first, second = table(), Changes(), store([1] * 64), store([2] * 64)
    assert blocks.apply([*first, CacheCleared(), *second], changes)
    assert changes.added == set(prompt_keys([2] * 64, FINGERPRINT))
    assert blocks.held() == changes.added


def test_engine_blocks_that_differ_at_their_end_share_the_keys_before_it() -> None:
    blocks, changes = table(128), Changes()
    one, other = store([1] * 64 + [2] * 64, engine=128), store([1] * 64 + [3] * 64, engine=128)
    blocks.apply([*one, *other], changes)
    assert len(changes.added) == 3
    changes = Changes()
    blocks.apply([removal(one[0])], changes)
    assert len(changes.removed) == 1
    assert blocks.held() == set(prompt_keys([1] * 64 + [3] * 64, FINGERPRINT))


def test_sizes_that_do_not_line_up_are_refused() -> None:
    with pytest.raises(ValueError, match="do not line up"):
        table(48, 64)


@pytest.mark.parametrize(("tokens", "keys"), [(63, 1), (64, 1), (16_384, 256)])
def test_capacity(tokens: int, keys: int) -> None:
    assert capacity_keys(cache_tokens=tokens, index_block_tokens=64) == keys


@given(st.sampled_from([(16, 64), (64, 64), (128, 64), (32, 128), (16, 16), (1, 16)]), st.integers(0, 400))
@settings(deadline=None)
def test_any_block_sizes_give_the_prompts_keys(sizes: tuple[int, int], length: int) -> None:
    engine, index = sizes
    blocks, changes, tokens = table(engine, index), Changes(), list(range(length))
    blocks.apply(store(tokens, engine=engine), changes)
    stored = length - length % engine
    assert changes.added == set(prompt_keys(tokens[:stored], FINGERPRINT, block_tokens=index))


class IndexBlocksMachine(RuleBasedStateMachine):
    """Random stores and removals, in any order of blocks, over prompts that branch inside index blocks."""

    @initialize(sizes=st.sampled_from([(4, 16), (8, 16), (16, 16), (32, 16)]))
    def start(self, sizes: tuple[int, int]) -> None:
        self.engine, self.index = sizes
        self.blocks = table(*sizes)
        self.copies: dict[bytes, int] = {}
        self.prefix: dict[bytes, list[int]] = {}
        self.held: set[int] = set()

    def apply(self, *events) -> None:
        changes = Changes()
        cleared = self.blocks.apply(events, changes)
        if cleared:
            self.held = set()
        assert changes.added.isdisjoint(self.held)
        assert changes.removed <= self.held
        self.held = (self.held - changes.removed) | changes.added

    @rule(path=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=12), copies=st.integers(1, 2))
    def store_prompt(self, path: list[int], copies: int) -> None:
        tokens = [token for token in path for _ in range(4)]
        for event in store(tokens, engine=self.engine):
            name = event.block_hash
            known = event.parent is None or event.parent in self.blocks._nodes
            self.apply(*[event] * copies)
            if known:
                self.copies[name] = self.copies.get(name, 0) + copies
                self.prefix[name] = tokens[: (len(self.prefix.get(event.parent or b"", [])) + self.engine)]

    @rule(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        stored = sorted(name for name, copies in self.copies.items() if copies)
        if stored:
            name = data.draw(st.sampled_from(stored))
            self.apply(BlockRemoved(name))
            self.copies[name] -= 1

    @rule()
    def clear(self) -> None:
        self.apply(CacheCleared())
        self.copies.clear()
        self.prefix.clear()

    @invariant()
    def keys_are_what_the_stored_blocks_cover(self) -> None:
        if not hasattr(self, "blocks"):
            return
        stored = {tuple(self.prefix[name]) for name, copies in self.copies.items() if copies}
        expected = set()
        for prefix in stored:
            for end in range(self.index, len(prefix) + 1, self.index):
                covering = range(
                    (end - self.index) // self.engine * self.engine + self.engine,
                    -(-end // self.engine) * self.engine + 1,
                    self.engine,
                )
                if all(prefix[:stop] in stored for stop in covering if stop <= len(prefix)):
                    expected.add(prompt_keys(prefix[:end], FINGERPRINT, block_tokens=self.index)[-1])
        assert self.held == expected
        assert self.blocks.held() == expected

    @invariant()
    def no_node_without_a_reason(self) -> None:
        if hasattr(self, "blocks"):
            for node in self.blocks._nodes.values():
                assert node.device or node.child


TestIndexBlocksMachine = IndexBlocksMachine.TestCase
TestIndexBlocksMachine.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
