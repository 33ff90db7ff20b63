"""The mirror's edge: boots a part's mirror from Redis, follows the log, and heals.

A boot notes the log's newest id, then reads slot by slot and applies the log in between; adds and removes are
idempotent, and entries of slots not yet open are ignored because the later read sees their effect. Every entry names
the id of the one before it: when that is not the last one applied here, entries were lost (trimmed, wiped, or lost in
a failover) and the mirror boots again, into new maps, while the old ones serve.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
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
    WorkerRecord,
    decode_entry,
    to_unsigned,
)
from indexer.mirror import Mirror
from warmroute.metrics import GatewayMetrics
from warmroute.redis_client import Client

logger = logging.getLogger(__name__)

BLOCK_MS: Final = 500
# At most 8 MB of full deltas.
ENTRIES_A_READ: Final = 256
# About 1 ms of work between two turns of the loop.
KEYS_A_SLICE: Final = 2000
BUCKETS_A_READ: Final = 4
BEATS_EVERY_SECONDS: Final = 1.0
LATE_MS: Final = 10_000
RETRY_SECONDS: Final = (0.1, 5.0)


class LogBrokenError(Exception):
    """Entries between the last one applied and the next one are gone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Follower:
    """Keeps `mirror` and `late` current. `run` is the one task; its owner cancels it."""

    def __init__(
        self, redis: Client, part: Part, metrics: GatewayMetrics, *, new_mirror: Callable[[], Mirror] = Mirror
    ) -> None:
        self.part = part
        self.mirror = new_mirror()
        self.late: frozenset[str] = frozenset()
        self.booted = False
        self.connected = False
        # redis-py annotates replies for every protocol and decoding at once; here they are bytes.
        self._redis: Any = redis
        self._metrics = metrics
        self._new_mirror = new_mirror
        self._last_id = "0-0"
        self._since_yield = 0
        self._complained = False
        self._beats_read_at = -BEATS_EVERY_SECONDS
        self._connected_gauge = metrics.mirror_connected.labels(part.pool)
        self._lag_gauge = metrics.mirror_lag_seconds.labels(part.pool)
        self._entries_counter = metrics.mirror_entries.labels(part.pool)

    async def run(self) -> None:
        """Boot and follow until cancelled. Redis being away is waited out, with the mirror as it last was."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep())
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
                    logger.info("the index log of %s is broken (%s): reading it again", self.part.prefix, reason)
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
        newest = await self._redis.xrevrange(self.part.key("log"), count=1)
        self._last_id = newest[0][0].decode() if newest else "0-0"
        mirror = self._new_mirror()
        packed: dict[bytes, bytes] = await self._redis.hgetall(self.part.key("workers"))
        unread = {name.decode(): WorkerRecord.decode(name.decode(), record) for name, record in packed.items()}
        while unread:
            worker_id, record = unread.popitem()
            await self._read_slot(mirror, record.slot, record.buckets)
            mirror.set_worker(worker_id, record.slot, record.facts)
            # Up to its end: a boot that falls behind a busy log would meet its trimmed part and start over for ever.
            at_end = False
            while not at_end:
                changed, at_end = await self._apply_new(mirror, block_ms=None)
                for worker_id in changed:
                    unread.pop(worker_id, None)
        self.mirror = mirror
        self.booted = True
        self._publish_sizes()

    async def _read_slot(self, mirror: Mirror, slot: int, buckets: Any) -> None:
        if slot == 0:
            return
        mirror.open_slot(slot)
        for tier in TIERS:
            count = buckets.get(tier, 0)
            for first in range(0, count, BUCKETS_A_READ):
                async with self._redis.deadline(), self._redis.pipeline(transaction=False) as pipeline:
                    for bucket in range(first, min(first + BUCKETS_A_READ, count)):
                        pipeline.smembers(self.part.bucket_key(slot, tier, bucket))
                    for members in await pipeline.execute():
                        mirror.add(slot, tier, [_key(member) for member in members])

    # --- follow ------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await self._apply_new(self.mirror, block_ms=BLOCK_MS)
            now = time.monotonic()
            if now - self._beats_read_at >= BEATS_EVERY_SECONDS:
                self._beats_read_at = now
                await self._read_beats()
                self._publish_sizes()

    async def _apply_new(self, mirror: Mirror, *, block_ms: int | None) -> tuple[list[str], bool]:
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
                await self._apply(mirror, entry)
                self._last_id = raw_id.decode()
                if isinstance(entry, LogWorker | LogDrop):
                    changed.append(entry.worker_id)
                elif isinstance(entry, LogDelta):
                    self._since_yield += entry.size
                    if self._since_yield >= KEYS_A_SLICE:
                        self._since_yield = 0
                        await asyncio.sleep(0)  # the relay's turn
            self._entries_counter.inc(len(entries))
            self._lag_gauge.set(max(0.0, time.time() - int(self._last_id.split("-")[0]) / 1000))
        return changed, read < ENTRIES_A_READ

    async def _apply(self, mirror: Mirror, entry: LogEntry | None) -> None:
        match entry:
            case LogDelta():
                for tier, keys in entry.removed.items():
                    mirror.remove(entry.slot, tier, keys)
                for tier, keys in entry.added.items():
                    mirror.add(entry.slot, tier, keys)
            case LogWorker():
                if mirror.slot(entry.worker_id) != entry.slot:
                    await self._read_slot(mirror, entry.slot, entry.buckets)
                mirror.set_worker(entry.worker_id, entry.slot, entry.facts)
            case LogDrop():
                mirror.drop_worker(entry.worker_id)

    async def _check_last_entry(self) -> None:
        """After a lost connection: is the last entry still there? If not, Redis was wiped or failed over."""
        log = self.part.key("log")
        if self._last_id == "0-0":
            return
        if not await self._redis.xrange(log, self._last_id, self._last_id, count=1):
            newest = await self._redis.xrevrange(log, count=1)
            raise LogBrokenError("trimmed" if newest and _id(newest[0][0].decode()) > _id(self._last_id) else "wiped")

    async def _read_beats(self) -> None:
        beats: list[tuple[bytes, float]] = await self._redis.zrange(self.part.key("beats"), 0, -1, withscores=True)
        if not beats:
            self.late = frozenset()
            # No beat at all though workers are known: the server was emptied under a connection that never broke.
            if self.mirror.workers:
                await self._check_last_entry()
            return
        newest = max(score for _, score in beats)
        self.late = frozenset(worker.decode() for worker, score in beats if newest - score > LATE_MS)

    # --- housekeeping ------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            more = self.mirror.sweep()
            await asyncio.sleep(0 if more else 0.25)

    def _set_connected(self, *, connected: bool) -> None:
        if connected and not self.connected:
            logger.info("following the index of %s", self.part.pool)
            self._complained = False
        self.connected = connected
        self._connected_gauge.set(connected)

    def _publish_sizes(self) -> None:
        for tier in TIERS:
            self._metrics.mirror_keys.labels(self.part.pool, tier).set(self.mirror.tier_size(tier))
        self._metrics.mirror_refused_keys.labels(self.part.pool).set(self.mirror.refused_keys)
        self._metrics.mirror_host_indexed.labels(self.part.pool).set(self.mirror.host_indexed)


def _key(member: bytes) -> int:
    try:
        return to_unsigned(int(member))
    except ValueError as error:
        raise MalformedError(f"{member[:40]!r} is no key") from error


def _id(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number)
