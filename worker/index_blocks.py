"""From engine blocks to index blocks: which keys this worker holds, given what its engine says of its cache.

An engine names its blocks by hashes of its own and of its own size. This table links each stored block to its parent,
so that a block's place in its sequence and the key of the index block that ends with it can be computed. A key is held
while every engine block that overlaps its index block is held. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from indexer.keys import TOKEN_BYTES, chain, root, token_bytes
from worker.events import BlockRemoved, BlockStored, CacheCleared, CacheEvent


@dataclass(slots=True)
class Changes:
    """Keys that entered and left a tier. A key is in at most one of the two sets."""

    added: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    def add(self, key: int) -> None:
        if key in self.removed:
            self.removed.discard(key)
        else:
            self.added.add(key)

    def remove(self, key: int) -> None:
        if key in self.added:
            self.added.discard(key)
        else:
            self.removed.add(key)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


@dataclass(slots=True, eq=False)
class _Node:
    """An engine block that is stored, or that stored blocks descend from."""

    parent: _Node | None
    block_hash: bytes
    # Tokens since the last index block boundary, this block's included, and the key of the index block before them.
    tokens: bytes
    key: int
    # Keys of the index blocks that end in this engine block.
    ends: list[int]
    copies: int = 0
    children: dict[bytes, _Node] = field(default_factory=dict)


class IndexBlocks:
    """One tier's table. Bounded by the engine's cache: one node a stored block, plus the ancestors that link them.

    `engine_block_tokens` must divide `index_block_tokens` or be a multiple of it; else ValueError.
    """

    def __init__(self, *, engine_block_tokens: int, index_block_tokens: int, fingerprint: str) -> None:
        if index_block_tokens % engine_block_tokens and engine_block_tokens % index_block_tokens:
            raise ValueError(
                f"engine blocks of {engine_block_tokens} tokens and index blocks of {index_block_tokens} do not line "
                "up: choose an index block size that is a multiple or a divisor of the engine's"
            )
        self.engine_block_tokens = engine_block_tokens
        self.index_block_tokens = index_block_tokens
        self.fingerprint = fingerprint
        self.orphaned = 0
        self.skipped = 0
        self._nodes: dict[bytes, _Node] = {}
        # Engine blocks larger than an index block can differ at their end only, and then share keys.
        self._holders: dict[int, int] = {}
        self._index_bytes = index_block_tokens * TOKEN_BYTES

    def apply(self, events: Iterable[CacheEvent], changes: Changes) -> bool:
        """Apply events in order, noting key changes in `changes`; says whether the cache was cleared among them.

        After a clear `changes` holds only what came later: the caller starts a new epoch. Stored blocks with an
        unknown parent are left out and counted in `orphaned`, never made roots; blocks of a wrong size and removals of
        unknown blocks are counted in `skipped`.
        """
        cleared = False
        for event in events:
            match event:
                case BlockStored():
                    self._stored(event, changes)
                case BlockRemoved():
                    self._removed(event, changes)
                case CacheCleared():
                    self._nodes.clear()
                    self._holders.clear()
                    changes.added.clear()
                    changes.removed.clear()
                    cleared = True
        return cleared

    def held(self) -> set[int]:
        """All keys held now, computed from the table; O(blocks)."""
        return {key for node in self._nodes.values() for key in node.ends if self._complete(node)}

    def __len__(self) -> int:
        return len(self._nodes)

    def _stored(self, event: BlockStored, changes: Changes) -> None:
        node = self._nodes.get(event.block_hash)
        if node is None:
            if len(event.token_ids) != self.engine_block_tokens:
                self.skipped += 1
                return
            parent = None
            if event.parent is not None:
                parent = self._nodes.get(event.parent)
                if parent is None:
                    self.orphaned += 1
                    return
            try:
                node = self._link(event, parent)
            except (OverflowError, TypeError, ValueError):  # token ids or names that are none
                self.skipped += 1
                return
        node.copies += 1
        if node.copies == 1:
            for key in self._keys_through(node):
                holders = self._holders[key] = self._holders.get(key, 0) + 1
                if holders == 1:
                    changes.add(key)

    def _removed(self, event: BlockRemoved, changes: Changes) -> None:
        node = self._nodes.get(event.block_hash)
        if node is None or node.copies == 0:
            self.skipped += 1
            return
        if node.copies == 1:
            for key in self._keys_through(node):
                self._holders[key] -= 1
                if not self._holders[key]:
                    del self._holders[key]
                    changes.remove(key)
        node.copies -= 1
        while node is not None and node.copies == 0 and not node.children:
            del self._nodes[node.block_hash]
            if node.parent is not None:
                del node.parent.children[node.block_hash]
            node = node.parent

    def _link(self, event: BlockStored, parent: _Node | None) -> _Node:
        if parent is None:
            before, key = b"", root(self.fingerprint, adapter=event.adapter, salt=event.salt)
        elif len(parent.tokens) >= self._index_bytes:
            before, key = b"", parent.ends[-1]
        else:
            before, key = parent.tokens, parent.key
        tokens = before + token_bytes(event.token_ids)
        ends = chain(tokens, key, block_tokens=self.index_block_tokens)
        node = _Node(parent, event.block_hash, tokens, key, ends)
        self._nodes[event.block_hash] = node
        if parent is not None:
            parent.children[event.block_hash] = node
        return node

    def _keys_through(self, node: _Node) -> Iterator[int]:
        """Keys whose index blocks overlap this node and whose other engine blocks are all held."""
        pending = [node]
        while pending:
            current = pending.pop()
            if current is not node and current.copies == 0:
                continue
            if current.ends:
                if self._complete(current):
                    yield from current.ends
            else:
                pending.extend(current.children.values())

    def _complete(self, node: _Node) -> bool:
        """Whether every engine block of the index block that ends in `node` is held."""
        remaining = max(1, self.index_block_tokens // self.engine_block_tokens)
        current: _Node | None = node
        while current is not None and remaining > 0:
            if current.copies == 0:
                return False
            current = current.parent
            remaining -= 1
        return True


def capacity_keys(*, cache_tokens: int, index_block_tokens: int) -> int:
    """How many index blocks a cache of `cache_tokens` holds when prompts part at index blocks.

    Prompts that share the beginning of an index block give one key each for fewer tokens: the indexer allows for that,
    and the ledger's sets then outgrow their compact encoding, which costs memory.
    """
    return max(1, cache_tokens // index_block_tokens)
