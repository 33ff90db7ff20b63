"""The mirror: a pool's index in a gateway's memory, made for one question: who holds how much of this prompt?

A key maps to a bitmap of *positions*; a position stands for one slot, and is reused only after a sweep has cleared its
bit everywhere. The walk over a prompt's keys ANDs bitmaps, so its cost is O(blocks + workers), however
many workers hold each block. No I/O and no clock here: `indexer.reader.part_follower` reads Redis and drives
this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from indexer.layout import TIERS, Tier, WorkerFacts
from indexer.reader.eviction_price import SAMPLED, EvictionPrice

# One big dict would stall the relay for the length of its resize; 4,096 shards keep each under 5,000 keys at the limit.
SHARDS: Final = 4096
_MASK: Final = SHARDS - 1
SWEEP_KEYS: Final = 2000
# What looking at a shard costs, in keys.
SWEEP_SHARD_KEYS: Final = 16
DEFAULT_KEY_LIMIT: Final = 20_000_000
FILLING: Final = 0.5
FULL: Final = 0.8
"""Shares of what a worker held when it evicted last, between which it counts as ever more full. Requests take room too,
of which events say nothing."""
NO_GHOSTS: Final[dict[int, int]] = {}

Shards = list[dict[int, int]]


class Match(NamedTuple):  # a tuple: making one for every worker is half the cost of a lookup
    """How many leading index blocks of a prompt a worker holds; each block is counted in its best tier."""

    blocks: int
    host_blocks: int = 0

    @property
    def device_blocks(self) -> int:
        return self.blocks - self.host_blocks


@dataclass(slots=True)
class _Worker:
    facts: WorkerFacts
    slot: int


class Mirror:
    """The index of one pool. Not thread-safe; made for one event loop.

    Slots are numbered by whoever fills them; of a worker's two, the newer has the higher number.

    Memory: about 125 bytes a key and tier at 100 workers and 4 holders a key, 290 at 1,000. Past `key_limit` distinct
    keys the host tier is given up (`host_indexed` turns False), then new device keys are left out and counted in
    `refused_keys`; both only ever shorten matches.
    `worker_changes` counts changes of the workers and their facts, so that others can cache what they derive of them.
    """

    def __init__(self, *, key_limit: int = DEFAULT_KEY_LIMIT) -> None:
        self.key_limit = key_limit
        self.host_indexed = True
        self.refused_keys = 0
        self.worker_changes = 0
        self.fullness: dict[str, float] = {}
        """Of workers that evict: 1 where every new key on the device pushes another one out, less where there is room
        again."""
        self.eviction = EvictionPrice()
        self.copies = 0
        """Device keys of all workers, each one's counted."""
        self._tiers: dict[Tier, Shards] = {tier: [{} for _ in range(SHARDS)] for tier in TIERS}
        self._sizes: dict[Tier, int] = dict.fromkeys(TIERS, 0)
        self._workers: dict[str, _Worker] = {}
        self._positions: dict[int, int] = {}
        # The worker of each live position, by its bit.
        self._owners: dict[int, str] = {}
        self._bits: list[int] = []
        # Device keys of each position, and how many there were at its latest eviction; 0: none yet.
        self._held: list[int] = []
        self._held_full: list[int] = []
        self._free: list[int] = []
        # Matches without host blocks, by depth, made once: as many as the longest prompt asked about has blocks.
        self._matches: list[Match] = []
        self._live = 0
        self._retired = 0
        self._sweeping = 0
        self._next_shard = 0

    # --- workers and slots -------------------------------------------------------------------------------------------

    @property
    def workers(self) -> Mapping[str, WorkerFacts]:
        """Every worker of the ledger, those that hold nothing included."""
        return {worker_id: worker.facts for worker_id, worker in self._workers.items()}

    @property
    def slots(self) -> Mapping[str, int]:
        """The slot of every worker; 0 for one that holds nothing."""
        return {worker_id: worker.slot for worker_id, worker in self._workers.items()}

    def facts(self, worker_id: str) -> WorkerFacts | None:
        worker = self._workers.get(worker_id)
        return worker.facts if worker else None

    def slot(self, worker_id: str) -> int:
        """The slot that holds the worker's keys; 0 for none."""
        worker = self._workers.get(worker_id)
        return worker.slot if worker else 0

    def open_slot(self, slot: int) -> None:
        """Make room for a slot's keys. They match nothing until `set_worker` attaches the slot."""
        if slot in self._positions:
            return
        if self._free:
            position = self._free.pop()
        else:
            position = len(self._bits)
            self._bits.append(1 << position)
            self._held.append(0)
            self._held_full.append(0)
        self._positions[slot] = position

    def set_worker(self, worker_id: str, slot: int, facts: WorkerFacts) -> None:
        """Say which open slot holds the worker's keys (0: none); its former slot matches nothing from now on."""
        self.worker_changes += 1
        worker = self._workers.get(worker_id)
        if worker is None:
            worker = self._workers[worker_id] = _Worker(facts, 0)
        worker.facts = facts
        if worker.slot != slot:
            self.retire_slot(worker.slot)
            worker.slot = slot
        if slot and (position := self._positions.get(slot)) is not None:
            self._owners[self._bits[position]] = worker_id
            self._live |= self._bits[position]
            self._weigh(position)

    def drop_worker(self, worker_id: str) -> None:
        self.worker_changes += 1
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            self.retire_slot(worker.slot)

    def retire_slot(self, slot: int) -> None:
        """Stop matching a slot, in O(1); `sweep` clears its keys later."""
        position = self._positions.pop(slot, None)
        if position is not None:
            bit = self._bits[position]
            owner = self._owners.pop(bit, None)
            if owner is not None:
                self.fullness.pop(owner, None)
            self.copies -= self._held[position]
            self._held[position] = self._held_full[position] = 0
            self._live &= ~bit
            self._retired |= bit

    # --- keys --------------------------------------------------------------------------------------------------------

    def add(self, slot: int, tier: Tier, keys: Iterable[int]) -> None:
        """Add keys to an open slot; keys of a slot that is not open are ignored."""
        position = self._positions.get(slot)
        if position is None or (tier == "host" and not self.host_indexed):
            return
        shards, bit = self._tiers[tier], self._bits[position]
        added = gained = 0
        on_device = tier == "device"
        eviction = self.eviction
        ghosts = eviction.ghosts if on_device else NO_GHOSTS
        for key in keys:
            shard = shards[key & _MASK]
            bits = shard.get(key)
            if not key & SAMPLED and key in ghosts and not (bits is not None and bits & bit):
                eviction.returned(key)
            if bits is None:
                if self.size + added >= self.key_limit and not self._make_room(tier):
                    self.refused_keys += 1
                    continue
                # `bit` itself is stored, so all keys of a single holder share one integer object.
                shard[key] = bit
                added += 1
                gained += 1
            elif not bits & bit:
                shard[key] = bits | bit
                gained += 1
        self._sizes[tier] += added
        if on_device and gained:
            self.copies += gained
            self._held[position] += gained
            self._weigh(position)

    def remove(self, slot: int, tier: Tier, keys: Iterable[int]) -> None:
        """Remove keys from an open slot; keys it does not hold are ignored."""
        position = self._positions.get(slot)
        if position is None:
            return
        shards, bit = self._tiers[tier], self._bits[position]
        on_device, lost = tier == "device", 0
        for key in keys:
            shard = shards[key & _MASK]
            bits = shard.get(key)
            if bits is not None and bits & bit:
                lost += 1
                if on_device and not key & SAMPLED:
                    self.eviction.evicted(key, self.copies)
                if bits == bit:
                    del shard[key]
                    self._sizes[tier] -= 1
                else:
                    shard[key] = bits ^ bit
        if on_device and lost:
            self.copies -= lost
            self._held_full[position] = self._held[position]
            self._held[position] -= lost
            self._weigh(position)

    def _weigh(self, position: int) -> None:
        """Note how full the position's worker is."""
        full = self._held_full[position]
        owner = self._owners.get(self._bits[position])
        if full and owner is not None:
            share = self._held[position] / full
            self.fullness[owner] = min(1.0, max(0.0, (share - FILLING) / (FULL - FILLING)))

    def _make_room(self, tier: Tier) -> bool:
        """Device keys push the host tier out, once; says whether there is room for one more key of `tier`."""
        if tier == "host" or not self.host_indexed:
            return False
        self.host_indexed = False
        freed = self._sizes["host"]
        self._tiers["host"] = [{} for _ in range(SHARDS)]
        self._sizes["host"] = 0
        return freed > 0

    def sweep(self) -> bool:
        """Clear retired slots from the next few shards, well below 1 ms of work; says whether there is more to do."""
        if not self._sweeping:
            if not self._retired:
                return False
            self._sweeping, self._retired, self._next_shard = self._retired, 0, 0
        room = SWEEP_KEYS
        # By what the shards hold, not by their mean: those behind this sweep are emptier than those before it.
        while self._next_shard < SHARDS and room > 0:
            for tier in TIERS:
                shard = self._tiers[tier][self._next_shard]
                room -= len(shard) + SWEEP_SHARD_KEYS
                self._sizes[tier] -= _clear(shard, self._sweeping)
            self._next_shard += 1
        if self._next_shard == SHARDS:
            self._free.extend(_positions(self._sweeping))
            self._sweeping = 0
        return bool(self._sweeping or self._retired)

    def start_over(self) -> None:
        """Index the host tier again and count refusals anew; the caller reads all slots again."""
        self.host_indexed = True
        self.refused_keys = 0

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Distinct keys over both tiers, those of retired slots not yet swept included."""
        return self._sizes["device"] + self._sizes["host"]

    @property
    def complete(self) -> bool:
        """Whether nothing was left out for want of room."""
        return self.host_indexed and not self.refused_keys

    def tier_size(self, tier: Tier) -> int:
        return self._sizes[tier]

    def held(self, worker_id: str, tier: Tier) -> Iterator[int]:
        """All keys of one worker; O(all keys), for tests and tools."""
        position = self._positions.get(self.slot(worker_id))
        if position is None:
            return
        bit = self._bits[position]
        for shard in self._tiers[tier]:
            for key, bits in shard.items():
                if bits & bit:
                    yield key

    def match(self, keys: Sequence[int]) -> dict[str, Match]:
        """For every worker that holds at least the first block: how many leading blocks it holds.

        A block counts while device or host holds it; a gap ends the match.
        """
        device, host = self._tiers["device"], self._tiers["host"]
        with_host = self._sizes["host"] > 0
        matches, owners = self._matches, self._owners
        matches.extend(map(Match, range(len(matches), len(keys) + 1)))
        alive = self._live
        found: dict[str, Match] = {}
        # Host-only blocks are counted for all workers at once, in binary: plane i holds bit i of every counter.
        planes: list[int] = []
        depth = 0
        for key in keys:
            bits = device[key & _MASK].get(key, 0)
            if with_host:
                still = (bits | host[key & _MASK].get(key, 0)) & alive
                _count(planes, still & ~bits)
            else:
                still = bits & alive
            if still != alive:
                if depth:
                    # Mostly one worker ends at a depth: entered here, without a call.
                    owner = owners.get(alive ^ still)
                    if owner is None or planes:
                        self._enter(found, alive ^ still, depth, planes)
                    else:
                        found[owner] = matches[depth]
                alive = still
                if not still:
                    return found
            depth += 1
        if depth:
            self._enter(found, alive, depth, planes)
        return found

    def _enter(self, found: dict[str, Match], ended: int, depth: int, planes: Sequence[int]) -> None:
        """Enter the workers of the bitmap `ended`, whose match is `depth` blocks."""
        match = self._matches[depth]
        owners = self._owners
        while ended:
            low = ended & -ended
            ended ^= low
            if (owner := owners.get(low)) is not None:
                found[owner] = Match(depth, _counter(planes, low.bit_length() - 1)) if planes else match


def _positions(bitmap: int) -> Iterator[int]:
    while bitmap:
        low = bitmap & -bitmap
        yield low.bit_length() - 1
        bitmap ^= low


def _clear(shard: dict[int, int], mask: int) -> int:
    """Clear the mask's bits in one shard; returns how many keys had no other holder."""
    # Keys alone: pairs are objects that the garbage collector counts, and soon stops everything to look at.
    touched = [key for key, bits in shard.items() if bits & mask]
    gone = 0
    for key in touched:
        if bits := shard[key] & ~mask:
            shard[key] = bits
        else:
            del shard[key]
            gone += 1
    return gone


def _count(planes: list[int], carry: int) -> None:
    """Add one to the counter of every position in `carry`."""
    level = 0
    while carry:
        if level == len(planes):
            planes.append(0)
        planes[level], carry = planes[level] ^ carry, planes[level] & carry
        level += 1


def _counter(planes: Sequence[int], position: int) -> int:
    return sum((plane >> position & 1) << level for level, plane in enumerate(planes))
