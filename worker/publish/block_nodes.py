"""Engine blocks as nodes: what each must remember so that the keys of index blocks can be told. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from indexer.keys import Extra
from worker.events import BlockHash, Tier


class Node:
    """An engine block that is stored, or that stored blocks of the same index block descend from.

    `parent` is None for the first engine block of an index block. `tail` has the tokens since the last boundary between
    index blocks, empty at a boundary; `key` is the key before them; `media` the items that overlap them. `ends` are the
    keys of the index blocks that end in this block, and `tier` is where those are held.
    """

    __slots__ = (
        "adapter",
        "after",
        "before",
        "block_hash",
        "child",
        "device",
        "ends",
        "host",
        "key",
        "media",
        "parent",
        "tail",
        "tier",
    )

    def __init__(
        self,
        block_hash: BlockHash,
        adapter: str,
        parent: Node | None,
        key: int,
        tail: bytes,
        ends: list[int],
        media: Sequence[Extra],
    ) -> None:
        self.block_hash = block_hash
        self.adapter = adapter
        self.parent = parent
        self.key = key
        self.tail = tail
        self.ends = ends
        self.media = media
        self.device = 0
        self.host = 0
        self.tier: Tier | None = None
        # Engine blocks of the same index block that follow this one: the last to come, and each one's neighbours among
        # its parent's. A set for most blocks would be the most of the table.
        self.child: Node | None = None
        self.before: Node | None = None
        self.after: Node | None = None


def unlink(node: Node, parent: Node) -> None:
    """Take a node from among its parent's children."""
    if node.before is not None:
        node.before.after = node.after
    else:
        parent.child = node.after
    if node.after is not None:
        node.after.before = node.before


def tier_of(node: Node) -> Tier | None:
    """Where the index blocks that end in `node` are held."""
    tier: Tier = "device"
    current: Node | None = node
    while current is not None:
        if not current.device:
            if not current.host:
                return None
            tier = "host"
        current = current.parent
    return tier
