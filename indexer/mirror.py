"""The mirror: a pool's index in a gateway's memory, made for one question: who holds how much of this prompt?

A key maps to a bitmap of *positions*; a position stands for one slot of the ledger, and is reused only after a sweep
has cleared its bit everywhere. The walk over a prompt's keys ANDs bitmaps, so its cost is O(blocks + workers), however
many workers hold each block. No I/O and no clock here: `indexer.follower` reads Redis and drives this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from indexer.layout import TIERS, Tier, WorkerFacts

# One big dict would stall the relay for the length of its resize; 4,096 shards keep each under 5,000 keys at the limit.
SHARDS: Final = 4096
_MASK: Final = SHARDS - 1
SWEEP_KEYS: Final = 3000
DEFAULT_KEY_LIMIT: Final = 20_000_000

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
    """The index of one part. Not thread-safe; made for one event loop.

    Memory: about 90 bytes a key and tier. Past `key_limit` distinct keys the host tier is given up (`host_indexed`
    turns False), then new device keys are left out and counted in `refused_keys`; both only ever shorten matches.
    `worker_changes` counts changes of the workers and their facts, so that others can cache what they derive of them.
    """

    def __init__(self, *, key_limit: int = DEFAULT_KEY_LIMIT) -> None:
        self.key_limit = key_limit
        self.host_indexed = True
        self.refused_keys = 0
        self.worker_changes = 0
        self._tiers: dict[Tier, Shards] = {tier: [{} for _ in range(SHARDS)] for tier in TIERS}
        self._sizes: dict[Tier, int] = dict.fromkeys(TIERS, 0)
        self._workers: dict[str, _Worker] = {}
        self._positions: dict[int, int] = {}
        self._owners: list[str | None] = []
        self._bits: list[int] = []
        self._free: list[int] = []
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
            self._owners.append(None)
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
            self._owners[position] = worker_id
            self._live |= self._bits[position]

    def drop_worker(self, worker_id: str) -> None:
        self.worker_changes += 1
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            self.retire_slot(worker.slot)

    def retire_slot(self, slot: int) -> None:
        """Stop matching a slot, in O(1); `sweep` clears its keys later."""
        position = self._positions.pop(slot, None)
        if position is not None:
            self._owners[position] = None
            self._live &= ~self._bits[position]
            self._retired |= self._bits[position]

    # --- keys --------------------------------------------------------------------------------------------------------

    def add(self, slot: int, tier: Tier, keys: Iterable[int]) -> None:
        """Add keys to an open slot; keys of a slot that is not open are ignored."""
        position = self._positions.get(slot)
        if position is None or (tier == "host" and not self.host_indexed):
            return
        shards, bit = self._tiers[tier], self._bits[position]
        added = 0
        for key in keys:
            shard = shards[key & _MASK]
            bits = shard.get(key)
            if bits is None:
                if self.size + added >= self.key_limit and not self._make_room(tier):
                    self.refused_keys += 1
                    continue
                # `bit` itself is stored, so all keys of a single holder share one integer object.
                shard[key] = bit
                added += 1
            elif not bits & bit:
                shard[key] = bits | bit
        self._sizes[tier] += added

    def remove(self, slot: int, tier: Tier, keys: Iterable[int]) -> None:
        """Remove keys from an open slot; keys it does not hold are ignored."""
        position = self._positions.get(slot)
        if position is None:
            return
        shards, bit = self._tiers[tier], self._bits[position]
        for key in keys:
            shard = shards[key & _MASK]
            bits = shard.get(key)
            if bits is not None and bits & bit:
                if bits == bit:
                    del shard[key]
                    self._sizes[tier] -= 1
                else:
                    shard[key] = bits ^ bit

    def _make_room(self, tier: Tier) -> bool:
        """Device keys push the host tier out, once; says whether there is room for one more key of `tier`."""
        if tier == "host" or not self.host_indexed:
            return False
        self.host_indexed = False
        freed = self._sizes["host"]
        self._tiers["host"] = [{} for _ in range(SHARDS)]
        self._sizes["host"] = 0
        return freed > 0

    def sweep(self, shards: int | None = None) -> bool:
        """Clear retired slots from the next few shards, about 1 ms of work; says whether there is more to do."""
        if not self._sweeping:
            if not self._retired:
                return False
            self._sweeping, self._retired, self._next_shard = self._retired, 0, 0
        if shards is None:
            shards = max(1, min(64, SWEEP_KEYS * SHARDS // (self.size + 1)))
        stop = min(self._next_shard + shards, SHARDS)
        for tier in TIERS:
            for number in range(self._next_shard, stop):
                self._sizes[tier] -= _clear(self._tiers[tier][number], self._sweeping)
        self._next_shard = stop
        if stop == SHARDS:
            self._free.extend(_positions(self._sweeping))
            self._sweeping = 0
        return bool(self._sweeping or self._retired)

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Distinct keys over both tiers, those of retired slots not yet swept included."""
        return self._sizes["device"] + self._sizes["host"]

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
        alive = self._live
        ended: list[tuple[int, int]] = []
        # Host-only blocks are counted for all workers at once, in binary: plane i holds bit i of every counter.
        planes: list[int] = []
        depth = 0
        for key in keys:
            bits = device[key & _MASK].get(key, 0)
            if with_host:
                host_bits = host[key & _MASK].get(key, 0)
                still = (bits | host_bits) & alive
                _count(planes, still & ~bits)
            else:
                still = bits & alive
            if still != alive:
                if depth:
                    ended.append((depth, alive ^ still))
                alive = still
                if not still:
                    break
            depth += 1
        if alive and depth:
            ended.append((depth, alive))
        found: dict[str, Match] = {}
        owners = self._owners
        for blocks, bitmap in ended:
            match = Match(blocks)
            while bitmap:
                low = bitmap & -bitmap
                bitmap ^= low
                position = low.bit_length() - 1
                owner = owners[position]
                if owner is not None:
                    found[owner] = Match(blocks, _counter(planes, position)) if planes else match
        return found


def _positions(bitmap: int) -> Iterator[int]:
    while bitmap:
        low = bitmap & -bitmap
        yield low.bit_length() - 1
        bitmap ^= low


def _clear(shard: dict[int, int], mask: int) -> int:
    """Clear the mask's bits in one shard; returns how many keys had no other holder."""
    touched = [(key, bits & ~mask) for key, bits in shard.items() if bits & mask]
    gone = 0
    for key, bits in touched:
        if bits:
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
