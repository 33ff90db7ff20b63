"""The mirror's edge: reads one part of a pool's index from Redis, follows its log, and heals.

A boot notes the log's newest id, then reads slot by slot and applies the log in between; adds and removes are
idempotent, and entries of slots not yet open are ignored because the later read sees their effect. Every entry names
the id of the one before it: when that is not the last one applied here, entries were lost (trimmed, wiped, or lost in
a failover) and the part is booted again. That happens in place: what a worker is known to hold serves until its slot
is read anew, and after a loss until the worker has written a new one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from redis.exceptions import RedisError

from indexer.layout import (
    TIERS,
    LogDelta,
    LogDrop,
    LogEntry,
    LogWorker,
    MalformedError,
    Part,
    WorkerFacts,
    WorkerRecord,
    decode_entry,
    to_unsigned,
)
from indexer.reader.metrics import MirrorMetrics
from indexer.reader.mirror import Mirror
from warmroute.redis.client import Client

logger = logging.getLogger(__name__)

BLOCK_MS: Final = 500
# Fewer, fuller reads of a busy log; workers themselves send every 100 ms.
PAUSE_SECONDS: Final = 0.02
# At most 512 KB of full deltas, which redis-py parses in one go.
ENTRIES_A_READ: Final = 16
# About half a millisecond of work between two turns of the loop.
KEYS_A_SLICE: Final = 500
BUCKETS_A_READ: Final = 2
# What an entry itself costs, in keys.
KEYS_AN_ENTRY: Final = 20
BOOT_READS: Final = 5
BEATS_EVERY_SECONDS: Final = 1.0
LATE_MS: Final = 10_000
RETRY_SECONDS: Final = (0.1, 1.0)
# How long a worker that the ledger lost goes by what it was known to hold; it comes back within seconds, its snapshot
# when its turn comes.
KEPT_SECONDS: Final = 120.0

# A mirror's slot stands for one read of one part's slot; the ledger's number comes first, so that they sort by age.
# Boots that fail count too, and a number that comes again would pass for a slot that was read.
_BOOT_BITS: Final = 32
_PART_BITS: Final = 8


class LogBrokenError(Exception):
    """Entries between the last one applied and the next one are gone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PartFollower:
    """Keeps one part of `mirror` and its `late` workers current. `run` is the one task; its owner cancels it."""

    def __init__(
        self, redis: Client, part: Part, mirror: Mirror, metrics: MirrorMetrics, *, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when `booted`, `connected` or `late` may have changed."""
        self.part = part
        self.late: frozenset[str] = frozenset()
        self.booted = False
        self.connected = False
        self._mirror = mirror
        # redis-py annotates replies for every protocol and decoding at once; here they are bytes.
        self._redis: Any = redis
        self._metrics = metrics
        self._changed = changed
        self._last_id = "0-0"
        self._boots = 0
        self._boot_wanted: str | None = None
        # The workers of this part with their epochs; those that the ledger does not list are also in `_kept`.
        self._epochs: dict[str, str] = {}
        self._kept: dict[str, float] = {}
        self._unlisted: set[str] = set()
        self._since_yield = 0
        self._complained = False
        self._heartbeats_read_at = -BEATS_EVERY_SECONDS
        self._lag_gauge = metrics.mirror_lag_seconds.labels(part.pool, str(part.number))
        self._entries_counter = metrics.mirror_entries.labels(part.pool)

    def boot_again(self, reason: str) -> None:
        """Read the whole part anew at the next turn."""
        self._boot_wanted = reason

    def forget(self) -> None:
        """Drop all workers of this part from the mirror."""
        for worker_id in list(self._epochs):
            self._drop(worker_id)

    async def run(self) -> None:
        """Boot and follow until cancelled. Redis being away is waited out, with the mirror as it last was."""
        reason: str | None = "start"
        delay = RETRY_SECONDS[0]
        while True:
            try:
                if reason is None:
                    await self._check_last_entry()
                else:
                    await self._boot(reason)
                    reason = None
                self._set_connected(connected=True)
                delay = RETRY_SECONDS[0]
                await self._follow()
            except LogBrokenError as broken:
                reason = broken.reason
                logger.info("reading the index of %s again (%s)", self.part.prefix, reason)
                await asyncio.sleep(RETRY_SECONDS[0] * random.uniform(0.5, 1.0))
            except (RedisError, OSError) as error:
                if not self._complained:
                    logger.warning("index of %s out of reach, routing on what is known: %s", self.part.pool, error)
                self._complained = True
                self._set_connected(connected=False)
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, RETRY_SECONDS[1])
            except MalformedError as error:
                logger.error("index of %s: %s; reading it again", self.part.prefix, error)  # noqa: TRY400
                self._set_connected(connected=False)
                reason = "error"
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, RETRY_SECONDS[1])

    # --- boot --------------------------------------------------------------------------------------------------------

    async def _boot(self, reason: str) -> None:
        self._metrics.mirror_boots.labels(self.part.pool, reason).inc()
        self._boots += 1
        unread = await self._read_workers()
        for worker_id in self._epochs.keys() - unread.keys():
            self._keep(worker_id, listed=False)
        while unread:
            worker_id, record = unread.popitem()
            await self._take_slot(worker_id, record.slot, record.buckets, record.epoch, record.facts)
            # Up to its end: a boot that falls behind a busy log would meet its trimmed part and start over for ever.
            at_end = False
            while not at_end:
                changed, at_end = await self._apply_new(block_ms=None)
                for worker_id in changed:
                    unread.pop(worker_id, None)
        self.booted = True
        self._changed()

    async def _read_workers(self) -> dict[str, WorkerRecord]:
        """All records of the part; sets the place in the log from which their changes are to be read."""
        for _ in range(BOOT_READS):
            newest = await self._redis.xrevrange(self.part.key("log"), count=1)
            packed: dict[bytes, bytes] = await self._redis.hgetall(self.part.key("workers"))
            # Workers without a log came between the two reads. The place "0-0" with workers would not tell one life
            # of the server from the next.
            if newest or not packed:
                break
            await asyncio.sleep(RETRY_SECONDS[0] * random.uniform(0.5, 1.0))
        self._last_id = newest[0][0].decode() if newest else "0-0"
        workers = {name.decode(errors="replace"): record for name, record in packed.items()}
        return {worker_id: WorkerRecord.decode(worker_id, record) for worker_id, record in workers.items()}

    async def _take_slot(
        self, worker_id: str, slot: int, buckets: Mapping[str, int], epoch: str, facts: WorkerFacts
    ) -> None:
        """Read a slot and switch the worker to it; what the worker held until then matches no more."""
        known = self._epochs.get(worker_id)
        self._epochs[worker_id] = epoch
        if slot == 0 and known == epoch and self._mirror.slot(worker_id):
            # The ledger lost what the worker, which lives on, still holds: its snapshot is on its way.
            self._keep(worker_id, listed=True)
            self._mirror.set_worker(worker_id, self._mirror.slot(worker_id), facts)
            return
        mirror_slot = self._mirror_slot(slot)
        if slot and self._mirror.slot(worker_id) != mirror_slot:
            self._mirror.open_slot(mirror_slot)
            try:
                await self._read_slot(mirror_slot, slot, buckets)
            except BaseException:
                self._mirror.retire_slot(mirror_slot)
                raise
        self._kept.pop(worker_id, None)
        self._unlisted.discard(worker_id)
        self._mirror.set_worker(worker_id, mirror_slot, facts)

    async def _read_slot(self, mirror_slot: int, slot: int, buckets: Mapping[str, int]) -> None:
        for tier in TIERS:
            count = buckets.get(tier, 0)
            for first in range(0, count, BUCKETS_A_READ):
                async with self._redis.deadline(), self._redis.pipeline(transaction=False) as pipeline:
                    for bucket in range(first, min(first + BUCKETS_A_READ, count)):
                        pipeline.smembers(self.part.bucket_key(slot, tier, bucket))
                    for members in await pipeline.execute():
                        self._mirror.add(mirror_slot, tier, [_key(member) for member in members])

    def _mirror_slot(self, slot: int) -> int:
        if slot == 0:
            return 0
        boot = self._boots & ((1 << _BOOT_BITS) - 1)
        return (slot << _BOOT_BITS | boot) << _PART_BITS | self.part.number

    def _keep(self, worker_id: str, *, listed: bool) -> None:
        self._kept.setdefault(worker_id, time.monotonic() + KEPT_SECONDS)
        if listed:
            self._unlisted.discard(worker_id)
        else:
            self._unlisted.add(worker_id)

    def _end_kept(self) -> None:
        now = time.monotonic()
        for worker_id in [worker_id for worker_id, ends_at in self._kept.items() if now >= ends_at]:
            if worker_id in self._unlisted:
                self._drop(worker_id)
            elif (facts := self._mirror.facts(worker_id)) is not None and self._is_ours(worker_id):
                self._mirror.set_worker(worker_id, 0, facts)
            self._kept.pop(worker_id, None)

    def _is_ours(self, worker_id: str) -> bool:
        """Whether what the mirror has of the worker is of this part: when the parts' number changes it may be
        another's by now."""
        slot = self._mirror.slot(worker_id)
        return slot == 0 or slot & ((1 << _PART_BITS) - 1) == self.part.number

    def _drop(self, worker_id: str) -> None:
        if self._is_ours(worker_id):
            self._mirror.drop_worker(worker_id)
        self._epochs.pop(worker_id, None)
        self._kept.pop(worker_id, None)
        self._unlisted.discard(worker_id)

    # --- follow ------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            _, at_end = await self._apply_new(block_ms=BLOCK_MS)
            if at_end:
                await asyncio.sleep(PAUSE_SECONDS)
            now = time.monotonic()
            if now - self._heartbeats_read_at >= BEATS_EVERY_SECONDS:
                self._heartbeats_read_at = now
                await self._read_heartbeats()
                # The server may change under a connection that does not break (a Sentinel's recheck, a proxy), and the
                # new one's next entries have lower ids while its clock is behind.
                await self._check_last_entry()
                self._end_kept()
            if self._boot_wanted is not None:
                reason, self._boot_wanted = self._boot_wanted, None
                raise LogBrokenError(reason)

    async def _apply_new(self, *, block_ms: int | None) -> tuple[list[str], bool]:
        """Apply what the log has past the last entry; returns the workers whose slot changed, and whether that was the
        log's end."""
        changed: list[str] = []
        read = 0
        reply = await self._redis.xread({self.part.key("log"): self._last_id}, ENTRIES_A_READ, block_ms)
        for _, entries in reply or ():
            read += len(entries)
            for raw_id, fields in entries:
                previous, entry = decode_entry(fields)
                if previous != self._last_id:
                    raise LogBrokenError("wiped" if previous == "0-0" else "trimmed")
                await self._apply(entry)
                self._last_id = raw_id.decode()
                if isinstance(entry, LogWorker | LogDrop):
                    changed.append(entry.worker_id)
                await self._let_others(KEYS_AN_ENTRY)
            self._entries_counter.inc(len(entries))
            self._lag_gauge.set(max(0.0, time.time() - int(self._last_id.split("-")[0]) / 1000))
        return changed, read < ENTRIES_A_READ

    async def _apply(self, entry: LogEntry | None) -> None:
        match entry:
            case LogDelta():
                slot = self._mirror_slot(entry.slot)
                for tier, keys in entry.removed.items():
                    for first in range(0, len(keys), KEYS_A_SLICE):
                        piece = keys[first : first + KEYS_A_SLICE]
                        self._mirror.remove(slot, tier, piece)
                        await self._let_others(len(piece))
                for tier, keys in entry.added.items():
                    for first in range(0, len(keys), KEYS_A_SLICE):
                        piece = keys[first : first + KEYS_A_SLICE]
                        self._mirror.add(slot, tier, piece)
                        await self._let_others(len(piece))
            case LogWorker():
                await self._take_slot(entry.worker_id, entry.slot, entry.buckets, entry.epoch, entry.facts)
            case LogDrop():
                self._drop(entry.worker_id)

    async def _let_others(self, keys: int) -> None:
        """The relay's turn, once in a slice."""
        self._since_yield += keys
        if self._since_yield >= KEYS_A_SLICE:
            self._since_yield = 0
            await asyncio.sleep(0)

    async def _check_last_entry(self) -> None:
        """Is the last entry still there? If not, Redis was wiped or failed over."""
        log = self.part.key("log")
        if self._last_id == "0-0":
            await self._redis.ping()  # nothing can be lost, but Redis may still be away
            return
        if not await self._redis.xrange(log, self._last_id, self._last_id, count=1):
            oldest = await self._redis.xrange(log, count=1)
            # The first entry of all has no predecessor; when it is still there, nothing was trimmed.
            raise LogBrokenError("trimmed" if oldest and oldest[0][1].get(b"p") != b"0-0" else "wiped")

    async def _read_heartbeats(self) -> None:
        heartbeats: list[tuple[bytes, float]] = await self._redis.zrange(self.part.key("beats"), 0, -1, withscores=True)
        if heartbeats:
            newest = max(score for _, score in heartbeats)
            self.late = frozenset(
                worker.decode(errors="replace") for worker, score in heartbeats if newest - score > LATE_MS
            )
        else:
            self.late = frozenset()
        self._changed()

    def _set_connected(self, *, connected: bool) -> None:
        if connected and not self.connected:
            logger.info("following the index of %s", self.part.prefix)
            self._complained = False
        self.connected = connected
        self._changed()


def _key(member: bytes) -> int:
    try:
        return to_unsigned(int(member))
    except ValueError as error:
        raise MalformedError(f"{member[:40]!r} is no key") from error
