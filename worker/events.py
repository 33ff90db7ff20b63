"""What an engine says about its prefix cache, normalised: the input of `worker.publish.index_blocks`.

The built-in engine emits these directly; adapters decode foreign engines' events into them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from indexer.keys import Extra

Tier = Literal["device", "host"]
BlockHash = Hashable
"""An engine's own name of a block, opaque outside this worker: bytes or an integer."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """One engine block became available for reuse.

    `block_hash` is the engine's own, opaque outside this worker; `parent` is the hash of the block before it, None for
    the first block of a sequence. `token_ids` has one id a token of the block, always full. `salt` and `adapter` name
    the root and are read from the first block only; later blocks inherit them.
    """

    block_hash: BlockHash
    parent: BlockHash | None
    token_ids: Sequence[int]
    salt: str = ""
    adapter: str = ""
    tier: Tier = "device"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of an engine block left the tier; stored twice means removed twice."""

    block_hash: BlockHash
    tier: Tier = "device"


class BlocksStored(NamedTuple):
    """`BlockStored` for neighbours in one sequence, each the parent of the next. A tuple: it is made by the thousand.

    `token_ids` has the ids of all blocks, or none: then the blocks are known from another tier under these hashes.
    `extras`: for each block the multimodal items that overlap it, with offsets relative to that block; or None.
    `repeats` marks a report of blocks that are held already: those get no further copy.
    """

    block_hashes: Sequence[BlockHash]
    parent: BlockHash | None
    token_ids: Sequence[int]
    salt: str = ""
    adapter: str = ""
    tier: Tier = "device"
    extras: Sequence[Sequence[Extra]] | None = None
    repeats: bool = False


class BlocksRemoved(NamedTuple):
    """`BlockRemoved` for several blocks, in any relation. Without a tier all copies are gone, wherever they were."""

    block_hashes: Sequence[BlockHash]
    tier: Tier | None = "device"


@dataclass(frozen=True, slots=True)
class AdapterReplaced:
    """Other weights are served under an adapter's name: blocks stored under it before are of no use to requests."""

    adapter: str


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """The whole cache is gone: a new epoch begins."""


CacheEvent = BlockStored | BlockRemoved | BlocksStored | BlocksRemoved | AdapterReplaced | CacheCleared
EventSink = Callable[[Sequence[CacheEvent]], None]
"""Takes the events of one engine step, in order. Called from the engine's thread; must not block or raise."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's load at one moment. `waiting_tokens`: prompt tokens of waiting requests neither cached nor computed.
    `kv_cache_usage`: share of the blocks that running requests hold, 0 to 1. `max_running_requests`: how many it runs
    at a time at most, 0 where the engine does not tell."""

    running_requests: int = 0
    waiting_requests: int = 0
    waiting_tokens: int = 0
    kv_cache_usage: float = 0.0
    max_running_requests: int = 0
