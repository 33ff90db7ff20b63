"""The ledger: the index in Redis, written only through one atomic script.

The indexer keeps no state of its own. Whatever must hold over restarts and between replicas (who owns a worker, at
which epoch and sequence number, which slot holds its keys) is checked and changed inside `ledger.lua`.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, cast
from urllib.parse import quote

import msgpack
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from indexer.layout import POOLS_KEY, SIGN, TIERS, WRAP, Part, Tier, WorkerFacts, bucket_count, encode_delta, parts_key
from indexer.server.metrics import IndexerMetrics
from warmroute.redis.access import INDEXER_COMMANDS, indexer_rules, missing_commands
from warmroute.redis.client import Client

logger = logging.getLogger(__name__)

SCRIPT: Final = files("indexer.server").joinpath("ledger.lua").read_text(encoding="utf-8")
SNAPSHOTS_AT_ONCE: Final = 8
SNAPSHOT_TTL_MS: Final = 30_000
DROPS_A_CALL: Final = 100
OLDEST_REDIS: Final = 7
# Errors of commands and of Lua about what a key holds, not about the server.
_OF_CONTENT: Final = re.compile(r"WRONGTYPE |(ERR )?(Error running script.*)?user_script:\d+: ")

KeysByTier = Mapping[Tier, Sequence[int]]


class LedgerError(Exception):
    """Base of what the ledger refuses. RedisError passes through unchanged."""


class WorkerLostError(LedgerError):
    """The ledger does not know this worker, or not in this epoch: it must say Hello again."""


class WorkerTakenError(LedgerError):
    """A newer stream of this worker owns it."""


class EpochSupersededError(LedgerError):
    """The epoch was replaced by a newer one."""


class OutOfOrderError(LedgerError):
    """The write does not follow the ledger's state."""

    def __init__(self, expected: int) -> None:
        super().__init__(f"out of order: expected number {expected}")
        self.expected = expected


class SnapshotDeferredError(LedgerError):
    """Enough snapshots of the part are under way."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"enough snapshots are under way; come again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class SickPartError(RedisError):
    """A key of this part holds what the script cannot read; other parts are not concerned."""


class PartsMismatchError(LedgerError):
    """The pool is split into another number of parts than this indexer is configured for."""

    def __init__(self, pool: str, stored: str, configured: int) -> None:
        super().__init__(
            f"indexer.parts: {configured} is refused: Redis has pool {pool!r} in {stored} parts. Configure "
            f"{stored} on every indexer, or stop them all, delete the pool's keys (wr:{{{quote(pool, safe='')}/*) and "
            "start them again"
        )


class UnsuitableRedisError(LedgerError):
    """The server cannot hold the index as it is configured."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """A stream's claim on a worker: every write carries the token, and is refused once a newer stream has another."""

    worker_id: str
    epoch: int
    token: str
    buckets: Mapping[Tier, int]

    @property
    def arguments(self) -> tuple[str, str, str]:
        return self.worker_id, self.token, f"{self.epoch:016x}"


class Ledger:
    """One part of one pool. All methods raise RedisError when Redis cannot be reached or refuses the write.

    `heartbeats` is the client of heartbeats, which must not queue behind writes; the same one when left out.
    """

    def __init__(
        self,
        redis: Client,
        part: Part,
        metrics: IndexerMetrics,
        *,
        heartbeats: Client | None = None,
        parts: int = 1,
        log_entries: int = 65_536,
        log_bytes: int = 268_435_456,
    ) -> None:
        """`parts`: how many the pool has. The log keeps about `log_entries`, and no more than about `log_bytes`."""
        self.part = part
        self._redis = redis
        self._parts = parts
        self._log_bytes = log_bytes
        self._heartbeats = heartbeats or redis
        self._metrics = metrics
        self._log_entries = log_entries
        self._script = redis.register_script(SCRIPT)

    def ownership(self, worker_id: str, epoch: int, facts: WorkerFacts) -> Ownership:
        """A claim with a fresh token, which `register` makes good."""
        buckets: dict[Tier, int] = {
            tier: bucket_count(facts.capacity[tier]) for tier in TIERS if facts.capacity.get(tier)
        }
        return Ownership(worker_id, epoch, secrets.token_hex(8), buckets)

    async def hello(self, worker_id: str, epoch: int, facts: WorkerFacts) -> tuple[Ownership, int]:
        """Claim the worker for a new stream: `ownership` and `register` in one."""
        owner = self.ownership(worker_id, epoch, facts)
        return owner, await self.register(owner, facts)

    async def register(self, owner: Ownership, facts: WorkerFacts) -> int:
        """Make a claim good, against the claims of earlier streams.

        Returns the sequence number that the ledger holds for this epoch: 0 when it needs a snapshot.
        Raises EpochSupersededError, PartsMismatchError.
        """
        stored = cast(bytes | None, await self._redis.set(parts_key(self.part.pool), self._parts, nx=True, get=True))
        if stored is not None and stored != str(self._parts).encode():
            raise PartsMismatchError(self.part.pool, stored.decode(errors="replace"), self._parts)
        await self._redis.sadd(POOLS_KEY, self.part.pool)
        reply = await self._call("hello", *owner.arguments, facts.to_json(), msgpack.packb(owner.buckets))
        return cast(int, reply[0])

    async def snapshot_chunk(self, owner: Ownership, *, seq: int, chunk: int, last: bool, held: KeysByTier) -> None:
        """Write one chunk of a snapshot; the last one makes it the worker's state.

        Raises WorkerLostError, WorkerTakenError, OutOfOrderError, SnapshotDeferredError (chunk 0 only).
        """
        await self._call(
            "snapshot",
            *owner.arguments,
            seq,
            chunk,
            int(last),
            SNAPSHOTS_AT_ONCE,
            SNAPSHOT_TTL_MS,
            msgpack.packb(owner.buckets),
            *_bucket_arguments(owner.buckets, held, {}),
        )

    async def delta(self, owner: Ownership, *, seq: int, added: KeysByTier, removed: KeysByTier) -> None:
        """Move the worker from state seq-1 to seq; a repeat of the stored number changes nothing.

        Raises WorkerLostError, WorkerTakenError, OutOfOrderError.
        """
        await self._call(
            "delta",
            *owner.arguments,
            seq,
            encode_delta(added, removed),
            *_bucket_arguments(owner.buckets, added, removed),
        )

    async def heartbeat(self, streams: Sequence[tuple[Ownership, int]]) -> list[int]:
        """Note the heartbeats of live streams, each with the last sequence number it has written.

        Returns the positions of streams that must start over: the ledger lost their worker or its last writes, or
        another stream took it.
        """
        arguments = [argument for owner, seq in streams for argument in (*owner.arguments, seq)]
        return [
            int(position) for position in await self._call("beat", self._log_bytes, *arguments, client=self._heartbeats)
        ]

    async def drop_late(self, late_seconds: float, *, by_clock: bool = False) -> tuple[int, list[str]]:
        """Drop workers whose heartbeat is this much older than the part's newest, as many as one call should.

        Returns how many the part still has, and the ids of those dropped.

        `by_clock`: than now, for a caller that knows that Redis was in reach all that time; else a part whose workers
        all died would keep them for ever.
        """
        arguments = int(late_seconds * 1000), DROPS_A_CALL, int(by_clock), self._log_bytes
        remaining, *dropped = await self._call("drop_late", *arguments, client=self._heartbeats)
        return cast(int, remaining), [worker_id.decode(errors="replace") for worker_id in dropped]

    async def forget(self) -> None:
        """Delete what a part without workers leaves behind: its log and counters."""
        await self._call("forget", client=self._heartbeats)

    async def _call(self, operation: str, *arguments: str | bytes | int, client: Client | None = None) -> list[bytes]:
        with self._metrics.ledger_seconds.labels(operation).time():
            try:
                # The second key exists and the first does not: a cluster that moves the slot refuses the call until
                # that is over (TRYAGAIN), and never has some of the part's keys here and some there.
                reply: list[bytes] = await self._script(
                    keys=[self.part.prefix, self.part.key("workers")],
                    args=[operation, self._log_entries, *arguments],
                    client=client,
                )
            except ResponseError as error:
                if not _OF_CONTENT.match(str(error)):
                    raise
                raise SickPartError(
                    f"{self.part.prefix}: a key of it holds what is not ours ({error}): delete its keys "
                    f"({self.part.prefix}:*), the workers write them anew"
                ) from error
        status, *rest = reply
        match status:
            case b"ok":
                return rest
            case b"lost":
                raise WorkerLostError("the ledger does not know this worker in this epoch")
            case b"taken":
                raise WorkerTakenError("a newer stream of this worker owns it")
            case b"superseded":
                raise EpochSupersededError("this epoch was replaced by a newer one; start a new epoch")
            case b"order":
                raise OutOfOrderError(int(rest[0]))
            case b"wait":
                raise SnapshotDeferredError(int(rest[0]))
        raise RedisError(f"the ledger script answered {status!r}")


async def check_server(redis: Client) -> None:
    """Check every server that takes writes: its version, what our user may do there, its eviction policy.

    Raises UnsuitableRedisError for a server that cannot hold the index as it is, AuthenticationError or
    NoPermissionError with the remedy where it refuses our user.
    """
    try:
        for master in await redis.masters():
            await _check_master(master)
    except AuthenticationError as error:
        raise AuthenticationError(
            f"Redis refuses our user or password ({error}): set redis.username and redis.password or "
            "redis.password_file to a user that it knows"
        ) from error


async def _check_master(master: Client) -> None:
    version = str((await master.hello())["version"])
    if int(version.split(".")[0]) < OLDEST_REDIS:
        raise UnsuitableRedisError(
            f"Redis has version {version}: upgrade it, the index needs Redis or Valkey {OLDEST_REDIS}.0 or newer"
        )
    missing = await missing_commands(master, INDEXER_COMMANDS)
    try:
        policy = (await master.info("memory")).get("maxmemory_policy", "noeviction")
    except NoPermissionError as error:
        logger.warning("cannot see whether Redis runs maxmemory-policy noeviction, which the index needs: %s", error)
        missing.remove("info")
        policy = "noeviction"
    if missing:
        raise NoPermissionError(
            f"our Redis user may not call {', '.join(missing)} on keys wr:*. Permit it all of: {indexer_rules()}"
        )
    if policy != "noeviction":
        raise UnsuitableRedisError(
            f"Redis runs with maxmemory-policy {policy}: it would silently drop parts of the index. "
            "Set: maxmemory-policy noeviction"
        )


def _bucket_arguments(buckets: Mapping[Tier, int], added: KeysByTier, removed: KeysByTier) -> list[str | int]:
    """Runs of `tier bucket removed added key...`, as the script reads them."""
    arguments: list[str | int] = []
    for tier, count in buckets.items():
        gone, new = _by_bucket(removed.get(tier, ()), count), _by_bucket(added.get(tier, ()), count)
        for bucket in gone.keys() | new.keys():
            out, into = gone.get(bucket, ()), new.get(bucket, ())
            arguments += (tier, bucket, len(out), len(into), *out, *into)
    return arguments


def _by_bucket(keys: Iterable[int], count: int) -> dict[int, list[int]]:
    """Keys by their bucket, as the signed integers that Redis holds."""
    buckets: dict[int, list[int]] = {}
    get = buckets.get
    for key in keys:
        bucket = key % count
        member = key - WRAP if key >= SIGN else key
        if (members := get(bucket)) is None:
            buckets[bucket] = [member]
        else:
            members.append(member)
    return buckets
