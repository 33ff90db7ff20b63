"""The block pool: which KV blocks are free, which are shared, and which hash each one answers to.

Pure bookkeeping, after vLLM's block pool: no tensors, no clock. Two rules differ from it:

- One hash has exactly one physical block. A block that fills with tokens already cached under its hash stays an
  unhashed private duplicate of its request, so a stored block is removed exactly once.
- A block is cached only while its parent is, so whoever replays the events never meets an unknown parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from worker.events import BlockRemoved, BlockStored, CacheCleared, CacheEvent

NULL_BLOCK_ID = 0


class Block:
    """One KV block. `ref_count` is the number of block tables that hold it; `previous` and `next` are its neighbours
    in the free queue, None outside it."""

    __slots__ = ("block_hash", "block_id", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: bytes | None = None
        self.previous: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        name = self.block_hash.hex()[:8] if self.block_hash else "-"
        return f"Block({self.block_id}, ref_count={self.ref_count}, hash={name})"


class FreeQueue:
    """Free blocks in the order in which they will be reused, linked through the blocks themselves: every operation,
    removal from the middle too, takes constant time and allocates nothing."""

    def __init__(self) -> None:
        self._length = 0
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next = self._tail
        self._tail.previous = self._head

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Reuse this one last."""
        self._link(block, self._tail.previous, self._tail)

    def append_left(self, block: Block) -> None:
        """Reuse this one next."""
        self._link(block, self._head, self._head.next)

    def pop_left(self) -> Block:
        """Take the block to reuse next. Raises IndexError when none is free."""
        block = self._head.next
        if block is None or block is self._tail:
            raise IndexError("no free block")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        """Take a block out of the middle. Raises ValueError for one that is not in the queue."""
        if block.previous is None or block.next is None:
            raise ValueError(f"{block} is not in the free queue")
        block.previous.next = block.next
        block.next.previous = block.previous
        block.previous = block.next = None
        self._length -= 1

    def _link(self, block: Block, previous: Block | None, following: Block | None) -> None:
        if block.previous is not None or previous is None or following is None:
            raise ValueError(f"{block} is in the free queue already")
        block.previous, block.next = previous, following
        previous.next = following.previous = block
        self._length += 1


class BlockPool:
    """All KV blocks of one engine. Block 0 is the null block: never allocated, the padding of block tables.

    Changes of the cache are kept as events until `drain_events`; the engine drains once a step.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and one more, not {num_blocks} blocks")
        self.blocks = tuple(Block(block_id) for block_id in range(num_blocks))
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.ref_count = 1
        self.free_queue = FreeQueue()
        for block in self.blocks[1:]:
            self.free_queue.append(block)
        self._cached: dict[bytes, Block] = {}
        self._events: list[CacheEvent] = []

    @property
    def num_usable(self) -> int:
        """Blocks that requests can hold."""
        return len(self.blocks) - 1

    @property
    def num_free(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return len(self.free_queue)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1."""
        return 1.0 - self.num_free / self.num_usable

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._cached

    def match(self, block_hashes: Iterable[bytes]) -> list[Block]:
        """The blocks of the longest cached run from the first hash on. Takes no reference: `touch` what you keep."""
        matched: list[Block] = []
        for block_hash in block_hashes:
            block = self._cached.get(block_hash)
            if block is None:
                break
            matched.append(block)
        return matched

    def touch(self, blocks: Iterable[Block]) -> None:
        """Add one reference to each block, taking those without one out of the free queue."""
        for block in blocks:
            if block.ref_count == 0:
                self.free_queue.remove(block)
            block.ref_count += 1

    def allocate(self, count: int) -> list[Block]:
        """Take `count` blocks from the front of the free queue, evicting what they cached. Raises IndexError, taking
        none, when fewer are free."""
        if count > self.num_free:
            raise IndexError(f"{count} blocks wanted, {self.num_free} free")
        taken = [self.free_queue.pop_left() for _ in range(count)]
        for block in taken:
            self.evict(block)
            block.ref_count = 1
        return taken

    def free(self, blocks: Sequence[Block]) -> None:
        """Drop one reference of each block of a block table, given in its order.

        Tails come first, so that a prefix outlives what follows it. Blocks without a hash go to the front of the
        queue, since nobody can hit them; the others to the back, which makes reuse least recently used first.
        """
        for block in reversed(blocks):
            if block.ref_count < 1 or block is self.null_block:
                raise ValueError(f"{block} is freed more often than taken")
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.block_hash is None:
                    self.free_queue.append_left(block)
                else:
                    self.free_queue.append(block)

    def cache_full_block(
        self,
        block: Block,
        block_hash: bytes,
        parent: bytes | None,
        token_ids: Sequence[int],
        *,
        salt: str,
        adapter: str,
    ) -> bool:
        """Offer a full, computed block for reuse under its hash; `parent` is None for a first block.

        False where another block owns the hash or the parent is not cached: the block then stays private to its
        request.
        """
        if block_hash in self._cached or (parent is not None and parent not in self._cached):
            return False
        if block.block_hash is not None or block.ref_count < 1:
            raise ValueError(f"{block} cannot be cached")
        block.block_hash = block_hash
        self._cached[block_hash] = block
        root = parent is None
        self._events.append(
            BlockStored(block_hash, parent, token_ids, salt=salt if root else "", adapter=adapter if root else "")
        )
        return True

    def evict(self, block: Block) -> None:
        """Drop the block's hash, if it has one."""
        if block.block_hash is not None:
            del self._cached[block.block_hash]
            self._events.append(BlockRemoved(block.block_hash))
            block.block_hash = None

    def reset(self) -> None:
        """Drop every hash. Requests keep the blocks that they hold."""
        for block in self._cached.values():
            block.block_hash = None
        self._cached.clear()
        self._events.append(CacheCleared())

    def drain_events(self) -> list[CacheEvent]:
        """What changed since the last call, in order."""
        events, self._events = self._events, []
        return events

    def check_integrity(self) -> None:
        """Raise AssertionError, saying what is wrong, where the pool contradicts itself. Takes time linear in it."""
        queued = list(self.free_queue)
        problems = [
            (len(queued) != len(self.free_queue), "the free queue's length differs from its links"),
            (len({block.block_id for block in queued}) != len(queued), "a block is queued twice"),
            (any(block.ref_count for block in queued), "a held block is queued"),
            (sum(block.ref_count > 0 for block in self.blocks) + len(queued) != len(self.blocks), "a block is lost"),
            (any(block.ref_count < 0 for block in self.blocks), "a reference count is negative"),
            (self.null_block.ref_count != 1 or self.null_block.block_hash is not None, "the null block was used"),
            (any(self._cached[key].block_hash != key for key in self._cached), "a hash names another block"),
            (
                sum(block.block_hash is not None for block in self.blocks) != len(self._cached),
                "a hashed block is not in the map",
            ),
        ]
        for wrong, what in problems:
            if wrong:
                raise AssertionError(what)
