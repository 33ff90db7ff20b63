"""What an engine says about its prefix cache, normalised: the input of `worker.index_blocks`.

The built-in engine emits these directly; adapters decode foreign engines' events into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Tier = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class BlockStored:
    """One engine block became available for reuse.

    `block_hash` is the engine's own, opaque outside this worker; `parent` is the hash of the block before it, None for
    the first block of a sequence. `token_ids` has one id a token of the block, always full. `salt` and `adapter` name
    the root and are read from the first block only; later blocks inherit them.
    """

    block_hash: bytes
    parent: bytes | None
    token_ids: Sequence[int]
    salt: str = ""
    adapter: str = ""
    tier: Tier = "device"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of an engine block left the tier; stored twice means removed twice."""

    block_hash: bytes
    tier: Tier = "device"


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """The whole cache is gone: a new epoch begins."""


CacheEvent = BlockStored | BlockRemoved | CacheCleared
EventSink = Callable[[Sequence[CacheEvent]], None]
"""Takes the events of one engine step, in order. Called from the engine's thread; must not block or raise."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's load at one moment. `waiting_tokens`: prompt tokens of waiting requests neither cached nor computed.
    `kv_cache_usage`: share of the blocks that running requests hold, 0 to 1."""

    running_requests: int = 0
    waiting_requests: int = 0
    waiting_tokens: int = 0
    kv_cache_usage: float = 0.0
