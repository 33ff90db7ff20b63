"""Cache events of foreign engines after decoding, before any meaning is given to them.

Engines agree on what happens (blocks stored, removed, moved, all cleared) and differ in how it is written. Named
tuples: a busy engine makes thousands a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from indexer.keys import Extra
from worker.events import BlockHash

FULL_ATTENTION_WINDOW = 1 << 62
"""The window of a group that attends to everything."""


class Group(NamedTuple):
    """One group of layers with a cache of its own, in hybrid models. `window`: tokens that it attends to."""

    number: int = 0
    window: int = FULL_ATTENTION_WINDOW


ONLY_GROUP = Group()


class Stored(NamedTuple):
    """Neighbouring blocks of one sequence became available, each the parent of the next.

    `block_tokens` is 0 and `token_ids` empty where an engine names blocks only. `medium` is the engine's word.
    """

    block_hashes: Sequence[BlockHash]
    parent: BlockHash | None
    token_ids: Sequence[int]
    block_tokens: int
    adapter: str = ""
    salt: str = ""
    extras: Sequence[Sequence[Extra]] | None = None
    medium: str = ""
    group: Group = ONLY_GROUP
    adapter_number: int | None = None
    """The engine's number of this loading of the adapter, where it says one."""


class Removed(NamedTuple):
    """One copy of each block left the medium, or all copies where the engine names none. `group`: its number."""

    block_hashes: Sequence[BlockHash]
    medium: str | None = ""
    group: int = 0


class Moved(NamedTuple):
    """One copy of a block changed its medium."""

    block_hash: BlockHash
    old: str
    new: str
    group: int = 0


class Cleared(NamedTuple):
    """Nothing is cached any more."""


EngineEvent = Stored | Removed | Moved | Cleared


class EngineBatch(NamedTuple):
    """What one engine step published. `at`: the engine's clock, in seconds.

    `undecodable` counts events that were left out; `ignored` those of kinds that say nothing of the cache's contents.
    """

    at: float
    events: Sequence[EngineEvent]
    undecodable: int = 0
    ignored: int = 0


@dataclass(slots=True)
class Drained:
    """One rank's events of one answer, in order.

    `missing`: others came before these and are lost, so that what was known no longer tells what is cached.
    """

    events: list[EngineEvent] = field(default_factory=list)
    missing: bool = False


class DecodeError(Exception):
    """Bytes that are no batch of events at all."""
