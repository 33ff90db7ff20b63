"""From engine blocks to index blocks: which keys this worker holds, given what its engine says of its cache.

An engine names its blocks by hashes of its own and of its own size. This table links each stored block to the ones
before it in the same index block, so that the key of the index block that ends with it can be computed. An index block
is held while every engine block that overlaps it is held: on the device when all of them are there, on the host when
all are held somewhere but not all on the device. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from indexer.keys import TOKEN_BYTES, Extra, chain, root, token_bytes
from worker.events import (
    AdapterReplaced,
    BlockHash,
    BlockRemoved,
    BlocksRemoved,
    BlocksStored,
    BlockStored,
    CacheCleared,
    CacheEvent,
    Tier,
)
from worker.publish.block_nodes import Node, tier_of, unlink
from worker.publish.media_extras import index_extras


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

    def clear(self) -> None:
        self.added.clear()
        self.removed.clear()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


_NO_ENDS: Final[list[int]] = []
_NO_MEDIA: Final[Sequence[Extra]] = ()
# What is forgotten at once when a table is over its bound, as a share of it: finding the oldest takes a scan.
_RELIEF: Final = 64


class IndexBlocks:
    """One worker's table, of both tiers.

    `engine_block_tokens` must divide `index_block_tokens` or be a multiple of it; else ValueError. Bounded by what the
    engine holds: a node for each stored block and, while they are evicted one by one, for the other engine blocks of
    the same index block. `capacity_blocks` bounds the copies of each tier where lost events could break that: beyond it
    second copies are forgotten first, then the blocks that were stored first, counted in `overfull`.
    """

    def __init__(
        self,
        *,
        engine_block_tokens: int,
        index_block_tokens: int,
        fingerprint: str,
        capacity_blocks: int | None = None,
        host_capacity_blocks: int | None = None,
    ) -> None:
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
        self.overfull = 0
        self._bounds: dict[Tier, int | None] = {"device": capacity_blocks, "host": host_capacity_blocks}
        self._copies: dict[Tier, int] = {"device": 0, "host": 0}
        self._nodes: dict[BlockHash, Node] = {}
        # Several engine blocks can end the same index block: those larger than it that differ at their end only, or
        # those that the engine tells apart and the index does not.
        self._holders: dict[Tier, dict[int, int]] = {"device": {}, "host": {}}
        self._changes: dict[Tier, Changes] = {}

    def apply(self, events: Iterable[CacheEvent], changes: Changes, host: Changes | None = None) -> bool:
        """Apply events in order, noting key changes in `changes`; says whether the cache was cleared among them.

        `host` takes the changes of the host tier; without it that tier's events are left out. After a clear both hold
        only what came later: the caller starts a new epoch. Stored blocks with an unknown parent are left out and
        counted in `orphaned`, never made roots; blocks of a wrong size and removals of unknown blocks are counted in
        `skipped`.
        """
        self._changes = {"device": changes} if host is None else {"device": changes, "host": host}
        cleared = False
        for event in events:
            match event:
                case BlocksRemoved(block_hashes, None):
                    for block_hash in block_hashes:
                        self._vanished(block_hash)
                case BlocksStored() | BlocksRemoved() | BlockStored() | BlockRemoved():
                    if event.tier in self._changes:
                        self._apply(event)
                case AdapterReplaced(adapter):
                    self._forget_adapter(adapter)
                case CacheCleared():
                    self._clear()
                    cleared = True
        for tier, bound in self._bounds.items():
            if bound is not None and self._copies[tier] > bound:
                self._relieve(tier, bound)
        return cleared

    def held(self, tier: Tier = "device") -> set[int]:
        """All keys held now in a tier, computed from the table; O(blocks)."""
        return {key for node in self._nodes.values() for key in node.ends if tier_of(node) == tier}

    def holds(self, block_hash: BlockHash) -> bool:
        """Whether the device has a copy of this engine block."""
        node = self._nodes.get(block_hash)
        return node is not None and node.device > 0

    def __len__(self) -> int:
        return len(self._nodes)

    def _apply(self, event: BlocksStored | BlocksRemoved | BlockStored | BlockRemoved) -> None:
        match event:
            case BlocksStored():
                self._stored(event)
            case BlocksRemoved(block_hashes, tier) if tier is not None:
                for block_hash in block_hashes:
                    self._removed(block_hash, tier)
            case BlockStored(block_hash, parent, token_ids, salt, adapter, tier):
                self._stored(BlocksStored((block_hash,), parent, token_ids, salt, adapter, tier))
            case BlockRemoved(block_hash, tier):
                self._removed(block_hash, tier)

    def _clear(self) -> None:
        self._nodes.clear()
        for tier in self._copies:
            self._copies[tier] = 0
            self._holders[tier].clear()
        for changes in self._changes.values():
            changes.clear()

    def _stored(self, run: BlocksStored) -> None:
        hashes, nodes = run.block_hashes, self._nodes
        if not run.token_ids:
            self._stored_again(run)
            return
        whole = len(run.token_ids) == len(hashes) * self.engine_block_tokens
        if not whole or (run.extras is not None and len(run.extras) != len(hashes)):
            self.skipped += len(hashes)
            return
        previous: Node | None = None
        known = 0
        for block_hash in hashes:
            node = nodes.get(block_hash)
            if node is None:
                break
            self._add_copy(node, run)
            previous = node
            known += 1
        if known == len(hashes):
            return
        if known == 0 and run.parent is not None:
            previous = nodes.get(run.parent)
            if previous is None:
                self.orphaned += len(hashes)
                return
        try:
            new = self._link(run, known, previous)
        except (OverflowError, TypeError, ValueError):  # token ids or names that are none
            self.skipped += len(hashes) - known
            return
        for node in new:
            self._add_copy(node, run)

    def _stored_again(self, run: BlocksStored) -> None:
        for block_hash in run.block_hashes:
            node = self._nodes.get(block_hash)
            if node is None:
                self.orphaned += 1
            else:
                self._add_copy(node, run)

    def _link(self, run: BlocksStored, known: int, previous: Node | None) -> list[Node]:
        """Nodes of the run's blocks from number `known` on, in order; those new to the table are entered."""
        block_tokens, index_tokens = self.engine_block_tokens, self.index_block_tokens
        if previous is None:
            adapter = run.adapter
            before, key, media = b"", root(self.fingerprint, adapter=adapter, salt=run.salt), _NO_MEDIA
        else:
            adapter = previous.adapter
            before, key, media = previous.tail, previous.key, previous.media
        tokens = before + token_bytes(run.token_ids[known * block_tokens :] if known else run.token_ids)
        extras = tails = None
        if media or (run.extras is not None and any(run.extras)):
            items = run.extras[known:] if run.extras is not None else [()] * (len(run.block_hashes) - known)
            extras, tails = index_extras(items, media, len(before) // TOKEN_BYTES, block_tokens, index_tokens)
        keys = chain(tokens, key, block_tokens=index_tokens, extras=extras)
        step, index_step = block_tokens * TOKEN_BYTES, index_tokens * TOKEN_BYTES
        nodes, linked = self._nodes, []
        end, whole = len(before), 0
        if end == 0:
            previous = None
        for number in range(known, len(run.block_hashes)):
            block_hash = run.block_hashes[number]
            end += step
            first, whole = whole, end // index_step
            boundary = whole * index_step
            node = nodes.get(block_hash)
            if node is None:
                node = Node(
                    block_hash,
                    adapter,
                    previous,
                    keys[whole - 1] if whole else key,
                    tokens[boundary:end],
                    keys[first:whole] if whole > first else _NO_ENDS,
                    _NO_MEDIA if tails is None or boundary == end else tails[number - known],
                )
                nodes[block_hash] = node
                if previous is not None:
                    node.after = previous.child
                    if node.after is not None:
                        node.after.before = node
                    previous.child = node
            linked.append(node)
            previous = node if boundary != end else None
        return linked

    def _add_copy(self, node: Node, run: BlocksStored) -> None:
        if run.tier == "device":
            if run.repeats and node.device:
                return
            node.device += 1
            first = node.device == 1
        else:
            if run.repeats and node.host:
                return
            node.host += 1
            first = node.host == 1
        self._copies[run.tier] += 1
        if first:
            if node.ends:
                self._settle(node)
            elif node.child is not None:
                self._settle_through(node)

    def _removed(self, block_hash: BlockHash, tier: Tier) -> None:
        node = self._nodes.get(block_hash)
        if node is None or not (node.device if tier == "device" else node.host):
            self.skipped += 1
            return
        self._take_copies(node, tier, 1)

    def _vanished(self, block_hash: BlockHash) -> None:
        node = self._nodes.get(block_hash)
        if node is None or not (node.device or node.host):
            self.skipped += 1
            return
        self._take_all(node)

    def _take_all(self, node: Node) -> None:
        if node.device:
            self._take_copies(node, "device", node.device)
        if node.host:
            self._take_copies(node, "host", node.host)

    def _take_copies(self, node: Node, tier: Tier, number: int) -> None:
        if tier == "device":
            node.device -= number
            left = node.device
        else:
            node.host -= number
            left = node.host
        self._copies[tier] -= number
        if left:
            return
        if node.ends:
            self._settle(node)
        elif node.child is not None:
            self._settle_through(node)
        current: Node | None = node
        while current is not None and not current.device and not current.host and current.child is None:
            del self._nodes[current.block_hash]
            parent = current.parent
            if parent is not None:
                unlink(current, parent)
            current = parent

    def _settle_through(self, node: Node) -> None:
        """Settle every index block that overlaps this engine block and ends in a later one."""
        pending = [node]
        while pending:
            current = pending.pop()
            if current.ends:
                self._settle(current)
            else:
                child = current.child
                while child is not None:
                    pending.append(child)
                    child = child.after

    def _settle(self, node: Node) -> None:
        """Bring where the index blocks that end in `node` are held into line with its copies and its parents'."""
        tier = tier_of(node)
        if tier == node.tier:
            return
        if node.tier is not None and node.tier in self._changes:
            holders, changes = self._holders[node.tier], self._changes[node.tier]
            for key in node.ends:
                left = holders[key] - 1
                if left:
                    holders[key] = left
                else:
                    del holders[key]
                    changes.remove(key)
        if tier is not None and tier in self._changes:
            holders, changes = self._holders[tier], self._changes[tier]
            for key in node.ends:
                count = holders[key] = holders.get(key, 0) + 1
                if count == 1:
                    changes.add(key)
        node.tier = tier

    def _relieve(self, tier: Tier, bound: int) -> None:
        """More copies than the engine can have: removals were lost, or reports were taken for copies."""
        for node in self._copied(tier, at_least=2):
            self._forget(node, tier, keep=1)
        # Some room is made at once: the next time would come soon, and walks the whole table.
        excess = self._copies[tier] - (bound - bound // _RELIEF)
        for node, _ in zip(self._copied(tier, at_least=1), range(excess), strict=False):
            self._forget(node, tier, keep=0)

    def _forget_adapter(self, adapter: str) -> None:
        for node in [node for node in self._nodes.values() if node.adapter == adapter]:
            self._take_all(node)

    def _copied(self, tier: Tier, *, at_least: int) -> Iterator[Node]:
        """Nodes with so many copies, those stored first ahead; a copy of the list, so they may be removed meanwhile."""
        for node in list(self._nodes.values()):
            if (node.device if tier == "device" else node.host) >= at_least:
                yield node

    def _forget(self, node: Node, tier: Tier, *, keep: int) -> None:
        number = (node.device if tier == "device" else node.host) - keep
        self.overfull += number
        self._take_copies(node, tier, number)


def capacity_keys(*, cache_tokens: int, index_block_tokens: int) -> int:
    """How many index blocks a cache of `cache_tokens` holds when prompts part at index blocks.

    Prompts that share the beginning of an index block give one key each for fewer tokens: the indexer allows for that,
    and the ledger's sets then outgrow their compact encoding, which costs memory.
    """
    return max(1, cache_tokens // index_block_tokens)
