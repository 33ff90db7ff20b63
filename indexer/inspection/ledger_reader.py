"""Reads the index for people and tools, safely on a busy server: read-only, no command that holds Redis up.

SCAN, SCARD, SMISMEMBER and MEMORY USAGE with few samples go out in pipelines of at most `BATCH` commands, each with
the client's deadline. What the Redis user may not ask is left out and shows as None.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from redis.exceptions import NoPermissionError

from indexer.inspection.view import (
    Entry,
    PartView,
    PoolView,
    ServerView,
    WorkerView,
    age_seconds,
    by_bucket,
    decode_entries,
    extend_match,
    parse_name,
    sets_of,
    slot_of_set,
    spread,
    view_worker,
)
from indexer.layout import TIERS, Part, Tier, parts_key
from indexer.reader.mirror import Match
from warmroute.redis.client import Client

BATCH: Final = 500
NOEVICTION: Final = "noeviction"
SCAN_COUNT: Final = 1000
# Keys of the server looked at to find pools and stray sets: 250 MB of names here, and some seconds.
SCAN_LIMIT: Final = 1_000_000
SAMPLED_SETS: Final = 32
STRAY_CHECK_LIMIT: Final = 10_000
# Blocks looked up before workers with a gap drop out.
MATCH_WINDOW: Final = 256
MATCH_TRIES: Final = 3


@dataclass(slots=True)
class Survey:
    """Which parts there are, and the sets of keys of each by slot. Bounded by SCAN_LIMIT; `complete` says whether that
    was enough."""

    parts: dict[Part, dict[int, list[bytes]]] = field(default_factory=dict)
    complete: bool = True

    @property
    def pools(self) -> list[str]:
        return sorted({part.pool for part in self.parts})

    def add(self, names: Iterable[bytes]) -> None:
        """Take names of keys; those of something else are ignored."""
        for name in names:
            if (parsed := parse_name(name)) is None:
                continue
            part, rest = parsed
            sets = self.parts.setdefault(part, {})
            if (slot := slot_of_set(rest)) is not None:
                sets.setdefault(slot, []).append(name)


class Reader:
    """All methods raise RedisError when Redis cannot be reached or holds something else under a name of ours."""

    def __init__(self, redis: Client) -> None:
        # redis-py annotates replies for every protocol and decoding at once; here they are bytes.
        self._redis: Any = redis

    async def survey(self, pool: str | None = None) -> Survey:
        """Walk the key space for the index's keys, of one pool if so wanted."""
        survey = Survey()
        pattern = "wr:{*" if pool is None else f"wr:{{{quote(pool, safe='')}/*"
        left = SCAN_LIMIT // SCAN_COUNT
        for master in await self._redis.masters():
            cursor = None
            while cursor != 0 and left:
                cursor, names = await master.scan(cursor or 0, match=pattern, count=SCAN_COUNT)
                survey.add(names)
                left -= 1
            survey.complete = survey.complete and cursor == 0
        return survey

    async def server(self) -> ServerView:
        """Clock and memory: of a cluster, the sum over its masters, and the policy that one of them differs in."""
        now_ms = await self._now_ms()
        try:
            memories = [await master.info("memory") for master in await self._redis.masters()]
        except NoPermissionError:
            return ServerView(now_ms, None, None, None)
        policies = {memory["maxmemory_policy"] for memory in memories}
        return ServerView(
            now_ms=now_ms,
            used_bytes=sum(memory["used_memory"] for memory in memories),
            max_bytes=sum(memory["maxmemory"] for memory in memories),
            policy=(sorted(policies - {NOEVICTION}) or [NOEVICTION])[0],
        )

    async def pool(self, pool: str, survey: Survey) -> PoolView:
        """One pool as it is now; `survey` may be older, but not younger."""
        declared = await self._redis.get(parts_key(pool))
        parts: list[PartView] = []
        workers: list[WorkerView] = []
        problems: list[str] = []
        for part in sorted((part for part in survey.parts if part.pool == pool), key=lambda part: part.number):
            view, part_workers, part_problems = await self._part(part, survey)
            parts.append(view)
            workers += part_workers
            problems += part_problems
        count = int(declared) if isinstance(declared, bytes) and declared.isdigit() else None
        if declared is not None and count is None:
            problems.append(f"{parts_key(pool)} is {declared[:40]!r}, which is no number of parts")
        return PoolView(pool, count, parts, sorted(workers, key=lambda worker: worker.worker_id), problems)

    async def entries(self, pool: str, survey: Survey) -> dict[Part, dict[str, Entry]]:
        """The pool's workers by part; records that cannot be read are left out."""
        parts = [part for part in survey.parts if part.pool == pool]
        return {part: decode_entries(await self._redis.hgetall(part.key("workers")))[0] for part in parts}

    async def match(self, pool: str, survey: Survey, keys: Sequence[int]) -> dict[str, Match]:
        """For every worker that holds at least the first block: how many leading blocks it holds.

        The answer of `Mirror.match`, read from Redis itself. A worker whose slot is replaced meanwhile is read again.
        """
        found: dict[str, Match] = {}
        read: dict[str, int] = {}
        for _ in range(MATCH_TRIES):
            changed = False
            for part, entries in (await self.entries(pool, survey)).items():
                for worker_id, entry in entries.items():
                    if read.get(worker_id) != entry.record.slot:
                        read[worker_id], changed = entry.record.slot, True
                        found[worker_id] = await self._match_worker(part, entry, keys)
            if not changed:
                break
        return {worker_id: match for worker_id, match in found.items() if match.blocks}

    async def _match_worker(self, part: Part, entry: Entry, keys: Sequence[int]) -> Match:
        match, goes_on = Match(0), entry.record.slot > 0
        for first in range(0, len(keys), MATCH_WINDOW):
            if not goes_on:
                break
            window = keys[first : first + MATCH_WINDOW]
            device, host = [await self._held(part, entry, tier, window) for tier in TIERS]
            match, goes_on = extend_match(match, device, host)
        return match

    async def _held(self, part: Part, entry: Entry, tier: Tier, keys: Sequence[int]) -> list[bool]:
        """Which of the keys the worker's slot holds in a tier."""
        held = [False] * len(keys)
        count = entry.record.buckets.get(tier, 0)
        if not count:
            return held
        buckets = by_bucket(keys, count)
        commands: list[tuple[str | bytes | int, ...]] = [
            ("SMISMEMBER", part.bucket_key(entry.record.slot, tier, bucket), *(member for _, member in wanted))
            for bucket, wanted in buckets.items()
        ]
        for wanted, flags in zip(buckets.values(), await self._pipelined(commands), strict=True):
            for (position, _), flag in zip(wanted, flags, strict=True):
                held[position] = bool(flag)
        return held

    # --- one part ----------------------------------------------------------------------------------------------------

    async def _part(self, part: Part, survey: Survey) -> tuple[PartView, list[WorkerView], list[str]]:
        redis, log = self._redis, part.key("log")
        entries, problems = decode_entries(await redis.hgetall(part.key("workers")))
        counts, keys_bytes = await self._count(part, entries.values())
        heartbeats = {worker.decode(errors="replace"): ms for worker, ms in await self._heartbeats(part)}
        log_entries = await redis.xlen(log)
        newest = await redis.xrevrange(log, count=1)
        now_ms = await self._now_ms()
        workers = [
            view_worker(entry, part.number, counts[worker_id], heartbeats, now_ms)
            for worker_id, entry in entries.items()
        ]
        newest_ms = int(newest[0][0].partition(b"-")[0]) if newest else None
        log_bytes = await self._memory([log])
        view = PartView(
            part=part.number,
            log_entries=log_entries,
            newest_entry_age_seconds=None if newest_ms is None else age_seconds(newest_ms, now_ms),
            log_bytes=None if log_bytes is None else sum(log_bytes),
            keys_bytes=keys_bytes,
            # A record that cannot be read may name any slot.
            stray_sets=await self._stray_sets(part, entries, survey) if survey.complete and not problems else None,
        )
        return view, workers, problems

    async def _count(self, part: Part, entries: Iterable[Entry]) -> tuple[dict[str, Counter[Tier]], int | None]:
        """Keys by worker and tier, and the memory that their sets take, from a sample of those that are not empty."""
        sets = sets_of(part, entries)
        counts: defaultdict[str, Counter[Tier]] = defaultdict(Counter)
        filled: list[str] = []
        sizes = await self._pipelined([("SCARD", name) for _, _, name in sets])
        for (worker_id, tier, name), size in zip(sets, sizes, strict=True):
            counts[worker_id][tier] += size
            if size:
                filled.append(name)
        if not filled:
            return counts, 0
        sampled = await self._memory(spread(filled, SAMPLED_SETS))
        if sampled is None:
            return counts, None
        # A sampled set may have been retired since it was counted.
        return counts, round(sum(sampled) / max(1, len(sampled)) * len(filled))

    async def _stray_sets(self, part: Part, entries: Mapping[str, Entry], survey: Survey) -> int:
        """Sets that the survey saw, whose slot no younger record names, and that are still there.

        A slot that was retired since the survey has no sets any more, and numbers are never used again.
        """
        named = {slot for entry in entries.values() for slot in entry.slots}
        strays = [name for slot, names in survey.parts[part].items() if slot not in named for name in names]
        found = await self._pipelined([("EXISTS", name) for name in strays[:STRAY_CHECK_LIMIT]])
        return sum(found)

    async def _heartbeats(self, part: Part) -> list[tuple[bytes, float]]:
        heartbeats: list[tuple[bytes, float]] = await self._redis.zrange(part.key("beats"), 0, -1, withscores=True)
        return heartbeats

    async def _now_ms(self) -> int:
        seconds, microseconds = await self._redis.time()
        return int(seconds * 1000 + microseconds // 1000)

    async def _memory(self, names: Sequence[str]) -> list[int] | None:
        """Bytes of each key that is there; None where the user may not ask."""
        try:
            sizes = await self._pipelined([("MEMORY USAGE", name, "SAMPLES", 5) for name in names])
        except NoPermissionError:
            return None
        return [size for size in sizes if size is not None]

    async def _pipelined(self, commands: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
        """Replies in order. Raises what the first command that failed was answered."""
        replies: list[Any] = []
        for first in range(0, len(commands), BATCH):
            async with self._redis.deadline(), self._redis.pipeline(transaction=False) as pipeline:
                for command in commands[first : first + BATCH]:
                    pipeline.execute_command(*command)
                replies += await pipeline.execute()
        return replies
