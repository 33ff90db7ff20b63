"""The block pool against a naive one, by random operations; its order of eviction; its events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from tests.worker.engine.support import cached_hashes
from worker.engine.blocks import Block, BlockPool, FreeQueue
from worker.engine.hashing import block_hash, root_hash
from worker.events import BlockRemoved, BlockStored, CacheCleared, CacheEvent

NUM_BLOCKS = 9
ROOT = root_hash()


def replay(events: list[CacheEvent], known: set[bytes]) -> None:
    """What a consumer without any cleverness keeps; it must never see a repeat or an unknown hash."""
    for event in events:
        match event:
            case BlockStored():
                assert event.block_hash not in known
                assert event.parent is None or event.parent in known
                known.add(event.block_hash)
            case BlockRemoved():
                known.remove(event.block_hash)
            case CacheCleared():
                known.clear()


def cache(pool: BlockPool, block: Block, tokens: list[int], parent: bytes | None = None) -> bytes:
    identity = block_hash(parent or ROOT, tokens)
    assert pool.cache_full_block(block, identity, parent, tokens, salt="", adapter="")
    return identity


class NaivePool:
    """The same rules over plain lists and dicts."""

    def __init__(self) -> None:
        self.free = list(range(1, NUM_BLOCKS))
        self.references = dict.fromkeys(self.free, 0)
        self.hashes: dict[int, bytes] = {}

    def allocate(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for number in taken:
            self.hashes.pop(number, None)
            self.references[number] = 1
        return taken

    def touch(self, numbers: list[int]) -> None:
        for number in numbers:
            if self.references[number] == 0:
                self.free.remove(number)
            self.references[number] += 1

    def release(self, numbers: list[int]) -> None:
        for number in reversed(numbers):
            self.references[number] -= 1
            if self.references[number] == 0:
                self.free.insert(len(self.free) if number in self.hashes else 0, number)


class PoolMachine(RuleBasedStateMachine):
    """Block tables are taken, shared, cached and given back in any order."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.naive = NaivePool()
        self.known: set[bytes] = set()
        self.held: list[list[Block]] = []

    @rule(target=tables, count=st.integers(0, 4))
    def allocate(self, count: int) -> object:
        if count > self.pool.num_free:
            with pytest.raises(IndexError):
                self.pool.allocate(count)
            return multiple()
        table = self.pool.allocate(count)
        assert [block.block_id for block in table] == self.naive.allocate(count)
        self.held.append(table)
        return table

    @rule(table=tables, name=st.integers(0, 3))
    def cache_table(self, table: list[Block], name: int) -> None:
        """Under one of few names, so that tables collide."""
        parent: bytes | None = None
        for place, block in enumerate(table):
            identity = block_hash(parent or ROOT, [name, place])
            if block.block_hash is None:
                taken = identity in self.naive.hashes.values()
                orphan = parent is not None and parent not in self.naive.hashes.values()
                cached = self.pool.cache_full_block(block, identity, parent, [name, place], salt="", adapter="")
                assert cached == (not taken and not orphan)
                if cached:
                    self.naive.hashes[block.block_id] = identity
            parent = identity

    @rule(target=tables, name=st.integers(0, 3), length=st.integers(1, 4))
    def share(self, name: int, length: int) -> object:
        identities: list[bytes] = []
        for place in range(length):
            identities.append(block_hash(identities[-1] if identities else ROOT, [name, place]))
        matched = self.pool.match(identities)
        numbers = {identity: number for number, identity in self.naive.hashes.items()}
        expected = []
        for identity in identities:
            if identity not in numbers:
                break
            expected.append(numbers[identity])
        assert [block.block_id for block in matched] == expected
        self.pool.touch(matched)
        self.naive.touch(expected)
        self.held.append(matched)
        return matched

    @rule(table=consumes(tables))
    def free(self, table: list[Block]) -> None:
        self.pool.free(table)
        self.naive.release([block.block_id for block in table])
        self.held = [held for held in self.held if held is not table]

    @rule()
    def reset(self) -> None:
        self.pool.reset()
        self.naive.hashes.clear()

    @precondition(lambda self: self.held)
    @rule()
    def drain(self) -> None:
        replay(self.pool.drain_events(), self.known)

    @invariant()
    def sound(self) -> None:
        self.pool.check_integrity()
        assert [block.block_id for block in self.pool.free_queue] == self.naive.free
        assert {block.block_id: block.ref_count for block in self.pool.blocks[1:]} == self.naive.references
        used = sum(block.ref_count > 0 for block in self.pool.blocks[1:])
        assert self.pool.num_free + used + 1 == NUM_BLOCKS
        for block in self.pool.blocks[1:]:
            assert block.ref_count == sum(table.count(block) for table in self.held)
        assert cached_hashes(self.pool) == frozenset(self.naive.hashes.values())

    def teardown(self) -> None:
        replay(self.pool.drain_events(), self.known)
        assert self.known == cached_hashes(self.pool)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_prefix_outlives_its_tail() -> None:
    pool = BlockPool(5)
    table = pool.allocate(3)
    first = cache(pool, table[0], [1])
    second = cache(pool, table[1], [2], first)
    cache(pool, table[2], [3], second)
    pool.free(table)
    pool.allocate(2)  # the block never used, then the tail
    assert cached_hashes(pool) == {first, second}
    pool.allocate(1)
    assert cached_hashes(pool) == {first}


def test_touching_a_prefix_saves_it() -> None:
    pool = BlockPool(3)
    [old], [new] = pool.allocate(1), pool.allocate(1)
    kept, lost = cache(pool, old, [1]), cache(pool, new, [2])
    pool.free([old])
    pool.free([new])
    matched = pool.match([kept])
    pool.touch(matched)
    pool.free(matched)
    pool.allocate(1)
    assert cached_hashes(pool) == {kept}
    assert BlockRemoved(lost) in pool.drain_events()


def test_one_hash_has_one_block() -> None:
    pool = BlockPool(4)
    original, duplicate = pool.allocate(2)
    identity = cache(pool, original, [1])
    assert not pool.cache_full_block(duplicate, identity, None, [1], salt="", adapter="")
    assert duplicate.block_hash is None
    assert len(pool.drain_events()) == 1


def test_a_block_without_its_parent_is_not_cached() -> None:
    pool = BlockPool(4)
    [block] = pool.allocate(1)
    assert not pool.cache_full_block(block, b"child", b"unknown", [1], salt="", adapter="")
    assert (pool.drain_events(), cached_hashes(pool), block.block_hash) == ([], frozenset(), None)


def test_misuse_is_refused() -> None:
    pool = BlockPool(3)
    [block] = pool.allocate(1)
    pool.free([block])
    with pytest.raises(ValueError, match="freed more often"):
        pool.free([block])
    with pytest.raises(ValueError, match="freed more often"):
        pool.free([pool.null_block])
    with pytest.raises(ValueError, match="cannot be cached"):
        pool.cache_full_block(block, b"x", None, [1], salt="", adapter="")
    with pytest.raises(ValueError, match="null block and one more"):
        BlockPool(1)


def test_the_integrity_check_finds_damage() -> None:
    def broken(kind: str) -> BlockPool:
        pool = BlockPool(4)
        held, _ = pool.allocate(2)
        cache(pool, held, [1])
        match kind:
            case "lost":
                held.ref_count = 0
            case "queued":
                next(iter(pool.free_queue)).ref_count = 1
            case "null":
                pool.null_block.ref_count = 0
            case "hash":
                held.block_hash = None
        return pool

    BlockPool(4).check_integrity()
    for kind in ("lost", "queued", "null", "hash"):
        with pytest.raises(AssertionError):
            broken(kind).check_integrity()


def test_the_free_queue_refuses_nonsense() -> None:
    queue = FreeQueue()
    block = Block(1)
    with pytest.raises(IndexError):
        queue.pop_left()
    with pytest.raises(ValueError, match="not in the free queue"):
        queue.remove(block)
    queue.append(block)
    with pytest.raises(ValueError, match="already"):
        queue.append_left(block)
    assert list(queue) == [block]
