"""What the index in Redis says, as values for people and tools: pure functions over Redis's replies.

`indexer.inspection.ledger_reader` asks Redis and hands the replies over. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgpack

from indexer.layout import TIERS, MalformedError, Part, Tier, WorkerFacts, WorkerRecord, to_signed
from indexer.reader.mirror import Match
from indexer.reader.part_follower import LATE_MS

_NAME: Final = re.compile(r"wr:\{([^/{}]+)/(\d{1,9})\}:(.+)")
_SET: Final = re.compile(r"keys:(\d{1,19}):[a-z]+:\d+")


@dataclass(frozen=True, slots=True)
class ServerView:
    """The Redis server. Bytes; `max_bytes` 0: no limit. None where the user may not ask."""

    now_ms: int
    used_bytes: int | None
    max_bytes: int | None
    policy: str | None


@dataclass(frozen=True, slots=True)
class TierView:
    """Keys of one worker in one tier. `share` is of the capacity in Hello, None where it gave none."""

    keys: int
    capacity: int
    share: float | None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as the ledger has it. `slot` 0: nothing is held. Ages in seconds by the clock of Redis."""

    worker_id: str
    part: int
    address: str
    model: str
    engine: str
    engine_version: str
    epoch: str
    seq: int
    slot: int
    tiers: Mapping[str, TierView]
    beat_age_seconds: float | None
    late: bool
    publishes_events: bool
    snapshot_chunks: int | None
    """Chunks written of a snapshot that is under way; None where there is none."""


@dataclass(frozen=True, slots=True)
class PartView:
    """One part of a pool. `keys_bytes` is an estimate from a sample; bytes are None where the user may not ask."""

    part: int
    log_entries: int
    newest_entry_age_seconds: float | None
    log_bytes: int | None
    keys_bytes: int | None
    stray_sets: int | None
    """Sets of keys whose slot no record names; None where the key space was not walked to its end."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool. `declared_parts` is what `wr:{pool/0}:parts` says, None where that key is not there."""

    pool: str
    declared_parts: int | None
    parts: Sequence[PartView]
    workers: Sequence[WorkerView]
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the hash `workers`, with the snapshot under way that `WorkerRecord` leaves out."""

    record: WorkerRecord
    next_slot: int
    next_buckets: Mapping[str, int]
    next_chunks: int | None

    @property
    def slots(self) -> Iterator[int]:
        """Slots whose sets are in use."""
        yield from (slot for slot in (self.record.slot, self.next_slot) if slot)

    @classmethod
    def decode(cls, worker_id: str, packed: bytes) -> Entry:
        """Raises MalformedError."""
        record = WorkerRecord.decode(worker_id, packed)
        following: Mapping[str, Any] = msgpack.unpackb(packed).get("next") or {}
        try:
            chunks = following["chunk"] + 1 if following else None
            return cls(record, following.get("slot", 0), following.get("buckets") or {}, chunks)
        except (LookupError, TypeError, AttributeError) as error:
            raise MalformedError(f"the snapshot in the record of worker {worker_id} is malformed: {error!r}") from error


def parse_name(name: bytes) -> tuple[Part, str] | None:
    """The part and the rest of a key's name, such as `workers`; None for a key of something else."""
    match = _NAME.fullmatch(name.decode(errors="replace"))
    return (Part(unquote(match[1]), int(match[2])), match[3]) if match else None


def slot_of_set(rest: str) -> int | None:
    """The slot of a set of keys, from the rest of its name; None for another key of the part."""
    match = _SET.fullmatch(rest)
    return int(match[1]) if match else None


def decode_entries(packed: Mapping[bytes, bytes]) -> tuple[dict[str, Entry], list[str]]:
    """The hash `workers` by worker id, and what is wrong with the records that cannot be read."""
    entries: dict[str, Entry] = {}
    problems: list[str] = []
    for name, record in packed.items():
        worker_id = name.decode(errors="replace")
        try:
            entries[worker_id] = Entry.decode(worker_id, record)
        except MalformedError as error:
            problems.append(str(error))
    return entries, problems


def sets_of(part: Part, entries: Iterable[Entry]) -> list[tuple[str, Tier, str]]:
    """(worker id, tier, name) of every set of keys that the workers' slots have, empty ones included."""
    return [
        (entry.record.worker_id, tier, part.bucket_key(entry.record.slot, tier, bucket))
        for entry in entries
        if entry.record.slot
        for tier in TIERS
        for bucket in range(entry.record.buckets.get(tier, 0))
    ]


def view_worker(
    entry: Entry, part: int, keys: Mapping[Tier, int], heartbeats: Mapping[str, float], now_ms: int
) -> WorkerView:
    """`heartbeats`: worker id -> last heartbeat in ms, of the whole part; late is who is behind the newest of them."""
    record, facts = entry.record, entry.record.facts
    heartbeat = heartbeats.get(record.worker_id)
    return WorkerView(
        worker_id=record.worker_id,
        part=part,
        address=facts.address,
        model=facts.model,
        engine=facts.engine,
        engine_version=facts.engine_version,
        epoch=record.epoch,
        seq=record.seq,
        slot=record.slot,
        tiers={tier: _view_tier(facts, tier, keys.get(tier, 0)) for tier in TIERS if tier in facts.capacity},
        beat_age_seconds=None if heartbeat is None else age_seconds(heartbeat, now_ms),
        late=heartbeat is not None and max(heartbeats.values()) - heartbeat > LATE_MS,
        publishes_events=facts.publishes_events,
        snapshot_chunks=entry.next_chunks,
    )


def _view_tier(facts: WorkerFacts, tier: Tier, keys: int) -> TierView:
    capacity = facts.capacity[tier]
    return TierView(keys, capacity, keys / capacity if capacity else None)


def age_seconds(then_ms: float, now_ms: int) -> float:
    """Never negative: what was written after `now` was read is new."""
    return max(0.0, now_ms - then_ms) / 1000


def spread(items: Sequence[str], count: int) -> list[str]:
    """At most `count` of the items, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]


def by_bucket(keys: Sequence[int], buckets: int) -> dict[int, list[tuple[int, int]]]:
    """Where in a slot's tier to look keys up: bucket -> [(position in `keys`, member of the set)]."""
    found: dict[int, list[tuple[int, int]]] = {}
    for position, key in enumerate(keys):
        found.setdefault(key % buckets, []).append((position, to_signed(key)))
    return found


def extend_match(match: Match, device: Sequence[bool], host: Sequence[bool]) -> tuple[Match, bool]:
    """A match that reaches the start of these blocks, extended over them; and whether it reaches their end.

    The rules of `Mirror.match`: a block counts while a tier holds it, in its best tier; a gap ends the match.
    """
    blocks, host_blocks = match
    for on_device, on_host in zip(device, host, strict=True):
        if not (on_device or on_host):
            return Match(blocks, host_blocks), False
        blocks += 1
        host_blocks += not on_device
    return Match(blocks, host_blocks), True
