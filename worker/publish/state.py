"""What a worker holds, what the ledger has been told, and what is on the way: the publisher without its wire.

The worker owns the truth. Changes merge into `pending` while a delta is in flight, so under load batches grow, not
queues: memory is bounded by the cache itself. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

from worker.events import Tier
from worker.publish.index_blocks import Changes

TIERS: Final[tuple[Tier, ...]] = ("device", "host")
# 32 KB in the log, and up to 2 ms of a gateway's loop.
DELTA_KEYS: Final = 4096
# 10 ms of the indexer's loop, which others' loads wait for; more at once is hardly faster.
CHUNK_KEYS: Final = 4096
# The first chunk asks for leave and is sent again until it comes, by all workers at once while Redis is away.
FIRST_CHUNK_KEYS: Final = 512

KeysByTier = Mapping[Tier, list[int]]


class Resume(Enum):
    """How a stream goes on after Welcome."""

    CONTINUE = "continue"
    RESEND = "resend"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class DeltaToSend:
    """The step from state `seq` - 1 to `seq`."""

    seq: int
    added: KeysByTier
    removed: KeysByTier


@dataclass(frozen=True, slots=True)
class ChunkToSend:
    """One chunk of the snapshot that makes state `seq`."""

    seq: int
    chunk: int
    last: bool
    held: KeysByTier


class PublishState:
    """The state of one worker's publication. `seq` is the number of the state last sent.

    `now` is in seconds of any steady clock, the same for all methods.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.seq = 0
        self.in_flight: DeltaToSend | None = None
        self._held: dict[Tier, set[int]] = {tier: set() for tier in TIERS}
        self._pending: dict[Tier, Changes] = {tier: Changes() for tier in TIERS}
        self._pending_since: float | None = None
        # What a delta or snapshot carries that is not acknowledged, or what a snapshot is yet to carry.
        self._sent_keys = 0
        self._sent_since: float | None = None

    def apply(self, tier: Tier, changes: Changes, now: float) -> None:
        """Take net changes of the cache. Adding what is held and removing what is not are ignored."""
        held, pending = self._held[tier], self._pending[tier]
        for key in changes.removed:
            if key in held:
                held.discard(key)
                pending.remove(key)
        for key in changes.added:
            if key not in held:
                held.add(key)
                pending.add(key)
        if not self._waiting:
            self._pending_since = None
        elif self._pending_since is None:
            self._pending_since = now

    def reset(self, epoch: int, now: float) -> None:
        """The cache is empty and a new epoch begins: nothing of the old one will be sent any more."""
        for tier in TIERS:
            self._held[tier].clear()
        self.renew(epoch, now)

    def renew(self, epoch: int, now: float) -> None:
        """The same cache under a new epoch: everything held is sent again, as a snapshot."""
        self.epoch = epoch
        self.seq = 0
        self._everything_waits(now)

    def _everything_waits(self, now: float) -> None:
        """Only a snapshot will tell: nothing that was sent or waits to be sent counts any more."""
        self.in_flight = None
        for tier in TIERS:
            self._pending[tier] = Changes()
        self._sent_since = now - self.unpublished_seconds(now)
        self._sent_keys = sum(len(held) for held in self._held.values())
        self._pending_since = None

    def resume(self, *, ledger_seq: int, snapshot_wanted: bool) -> Resume:
        """Decide how a new stream goes on, given what the ledger holds of this epoch (0: nothing)."""
        in_flight = self.in_flight
        if not snapshot_wanted and ledger_seq:
            if ledger_seq == self.seq:
                self.acknowledged(ledger_seq)
                return Resume.CONTINUE
            if in_flight is not None and ledger_seq == in_flight.seq - 1:
                return Resume.RESEND
        return Resume.SNAPSHOT

    def next_delta(self) -> DeltaToSend | None:
        """Start the next delta; None while one is in flight or nothing changed."""
        if self.in_flight is not None or not self._waiting:
            return None
        room = DELTA_KEYS
        added: dict[Tier, list[int]] = {}
        removed: dict[Tier, list[int]] = {}
        for tier, pending in self._pending.items():
            for side, waiting in ((removed, pending.removed), (added, pending.added)):
                side[tier] = [waiting.pop() for _ in range(min(room, len(waiting)))]
                room -= len(side[tier])
        self.seq += 1
        self.in_flight = DeltaToSend(self.seq, added, removed)
        self._sent_keys, self._sent_since = DELTA_KEYS - room, self._pending_since
        # What is left is of unknown age: at most that of the oldest.
        self._pending_since = self._pending_since if self._waiting else None
        return self.in_flight

    def acknowledged(self, seq: int) -> bool:
        """The ledger holds state `seq`; says whether that ends the delta in flight or the snapshot under way."""
        if self._sent_since is None or self.seq != seq:
            return False
        self.in_flight = None
        self._sent_keys, self._sent_since = 0, None
        return True

    def snapshot(self, now: float) -> Iterator[ChunkToSend]:
        """Copy the held keys as the state `seq` + 1; at least one chunk. Later changes are deltas upon it."""
        self.seq += 1
        self._everything_waits(now)
        keys = [(tier, key) for tier in TIERS for key in self._held[tier]]
        return _chunks(self.seq, keys)

    @property
    def unpublished(self) -> int:
        """Keys of changes that the ledger has not acknowledged, those on the way included."""
        return self._waiting + self._sent_keys

    def unpublished_seconds(self, now: float) -> float:
        """How long the oldest of those changes has waited; 0 when there is none."""
        since = [at for at in (self._sent_since, self._pending_since) if at is not None]
        return max(0.0, now - min(since)) if since else 0.0

    @property
    def _waiting(self) -> int:
        """Changes that no delta carries yet."""
        return sum(len(pending.added) + len(pending.removed) for pending in self._pending.values())

    def held(self, tier: Tier) -> frozenset[int]:
        return frozenset(self._held[tier])

    def held_count(self, tier: Tier) -> int:
        return len(self._held[tier])


def _chunks(seq: int, keys: list[tuple[Tier, int]]) -> Iterator[ChunkToSend]:
    bounds = [0, *range(min(FIRST_CHUNK_KEYS, len(keys)), len(keys), CHUNK_KEYS), len(keys)]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        yield ChunkToSend(seq, number, stop == len(keys), _by_tier(keys[start:stop]))


def _by_tier(keys: Iterable[tuple[Tier, int]]) -> KeysByTier:
    tiers: dict[Tier, list[int]] = {}
    for tier, key in keys:
        tiers.setdefault(tier, []).append(key)
    return tiers
