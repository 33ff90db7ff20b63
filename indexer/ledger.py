"""The ledger: the index in Redis, written only through one atomic script.

The indexer keeps no state of its own. Whatever must hold over restarts and between replicas (who owns a worker, at
which epoch and sequence number, which slot holds its keys) is checked and changed inside `ledger.lua`.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, cast

import msgpack
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from indexer.layout import TIERS, Part, Tier, WorkerFacts, bucket_count, encode_delta, to_signed
from warmroute.metrics import IndexerMetrics

logger = logging.getLogger(__name__)

SCRIPT: Final = files("indexer").joinpath("ledger.lua").read_text(encoding="utf-8")
SNAPSHOTS_AT_ONCE: Final = 8
SNAPSHOT_TTL_MS: Final = 30_000
DROPS_A_CALL: Final = 16

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
    """Enough snapshots of the pool are under way."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"enough snapshots are under way; come again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


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
    """One part of one pool. All methods raise RedisError when Redis is out of reach or refuses the write.

    `beats` is the client of heartbeats, which must not queue behind writes; the same one when left out.
    """

    def __init__(
        self,
        redis: Redis,
        part: Part,
        metrics: IndexerMetrics,
        *,
        beats: Redis | None = None,
        log_entries: int = 65_536,
    ) -> None:
        self.part = part
        self._beats = beats or redis
        self._metrics = metrics
        self._log_entries = log_entries
        self._script = redis.register_script(SCRIPT)

    async def hello(self, worker_id: str, epoch: int, facts: WorkerFacts) -> tuple[Ownership, int]:
        """Claim the worker for a new stream.

        Returns the claim and the sequence number that the ledger holds for this epoch: 0 when it needs a snapshot.
        Raises EpochSupersededError.
        """
        buckets: dict[Tier, int] = {
            tier: bucket_count(facts.capacity[tier]) for tier in TIERS if facts.capacity.get(tier)
        }
        owner = Ownership(worker_id, epoch, secrets.token_hex(8), buckets)
        reply = await self._call("hello", *owner.arguments, facts.to_json(), msgpack.packb(buckets))
        return owner, cast(int, reply[0])

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

    async def beat(self, streams: Sequence[tuple[Ownership, int]]) -> list[int]:
        """Note the heartbeats of live streams, each with the last sequence number it has written.

        Returns the positions of streams that must start over: the ledger lost their worker or its last writes, or
        another stream took it.
        """
        arguments = [argument for owner, seq in streams for argument in (*owner.arguments, seq)]
        return [int(position) for position in await self._call("beat", *arguments, client=self._beats)]

    async def drop_late(self, late_seconds: float) -> list[str]:
        """Drop workers whose heartbeat is this much older than the part's newest; returns their ids."""
        dropped = await self._call("drop_late", int(late_seconds * 1000), DROPS_A_CALL, client=self._beats)
        return [worker_id.decode() for worker_id in dropped]

    async def _call(self, operation: str, *arguments: str | bytes | int, client: Redis | None = None) -> list[bytes]:
        with self._metrics.ledger_seconds.labels(operation).time():
            reply: list[bytes] = await self._script(
                keys=[self.part.prefix], args=[operation, self._log_entries, *arguments], client=client
            )
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


async def check_server(redis: Redis) -> None:
    """Raise UnsuitableRedisError when the server would evict keys of the index by itself."""
    try:
        memory = await redis.info("memory")
    except NoPermissionError as error:
        logger.warning("cannot see whether Redis runs maxmemory-policy noeviction, which the index needs: %s", error)
        return
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise UnsuitableRedisError(
            f"Redis runs with maxmemory-policy {policy}: it would silently drop parts of the index. "
            "Set: maxmemory-policy noeviction"
        )


def _bucket_arguments(buckets: Mapping[Tier, int], added: KeysByTier, removed: KeysByTier) -> list[str | int]:
    """Runs of `tier bucket removed added key...`, as the script reads them."""
    arguments: list[str | int] = []
    for tier, count in buckets.items():
        runs: defaultdict[int, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for side, keys in enumerate((removed.get(tier, ()), added.get(tier, ()))):
            for key in keys:
                runs[key % count][side].append(str(to_signed(key)))
        for bucket, (gone, new) in runs.items():
            arguments += [tier, bucket, len(gone), len(new), *gone, *new]
    return arguments
