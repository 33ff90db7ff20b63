"""One worker's stream: the messages of `IndexService.Publish` in order, turned into writes of the ledger."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import grpc
from redis.exceptions import RedisError

from indexer.layout import Tier, WorkerFacts
from indexer.server.file_transfers import FileTransfers, Offer
from indexer.server.inflight import InflightGate
from indexer.server.leases import LEASE_SECONDS, HeldError, Lease, Leases, lease_of
from indexer.server.ledger import (
    EpochSupersededError,
    Ledger,
    OutOfOrderError,
    Ownership,
    PartsMismatchError,
    SnapshotDeferredError,
    WorkerLostError,
    WorkerTakenError,
)
from indexer.server.load_board import LoadTable, WorkerKey
from indexer.server.metrics import IndexerMetrics
from indexer.server.validation import (
    FORMAT_VERSION,
    RefusedError,
    check_disjoint,
    check_hello,
    check_keys,
    check_load,
    check_seq,
    invalid,
)
from warmroute.v1 import index_pb2 as pb

# Loads come every 100 ms and are the heartbeat; a stream silent for this long is half open.
SILENCE_SECONDS: Final = 15.0
HELLO_SECONDS: Final = 5.0
LEDGER_RETRY_MS: Final = 500
PATIENCE_SECONDS: Final = (10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Claim:
    """What Hello settled for the rest of the stream."""

    worker: WorkerKey
    ledger: Ledger
    owner: Ownership
    lease: Lease
    facts: WorkerFacts

    @property
    def pool(self) -> str:
        return self.worker[0]

    @property
    def worker_id(self) -> str:
        return self.worker[1]

    @property
    def address(self) -> str:
        return self.facts.address


class Session:
    """The state of one stream. `answer` takes one message and returns the reply to send, if any.

    While the ledger cannot be reached a stream goes on, and a new one begins: its loads still reach the gateways,
    except the one whose write fails, and its worker is told to send a snapshot later. `registered` says whether the
    ledger knows of the stream.
    """

    def __init__(
        self,
        ledger_of: Callable[[str, str], Ledger],
        loads: LoadTable,
        metrics: IndexerMetrics,
        end: asyncio.Timeout,
        gate: InflightGate,
        files: FileTransfers,
        leases: Leases,
        *,
        peer: str,
        ledger_up: Callable[[], bool],
    ) -> None:
        """`peer`: whom the stream comes from, as grpc writes it. `ledger_up`: False while the last heartbeat did not
        reach the ledger; writes are not tried then, since one that hangs would hold up the loads behind it."""
        self._ledger_up = ledger_up
        self._gate = gate
        self._files = files
        self._leases = leases
        self._peer = peer
        self._offer: Offer | None = None
        self.claim: Claim | None = None
        self.registered = False
        self.leased: Lease | None = None
        """What the stream holds, from its first call to Redis on."""
        self.seq = 0
        self.started_at = time.monotonic()
        self.patience = random.uniform(*PATIENCE_SECONDS)
        """How long the worker stays with a replica that has lost the ledger."""
        self.end_reason = f"no Hello came for {HELLO_SECONDS:.0f} s"
        self._closed = self._kicked = False
        # Keys of the slot as this stream knows them; a stream that goes on without a snapshot starts to count anew.
        self._keys: dict[Tier, int] = {}
        self._counted = False
        self._ledger_of = ledger_of
        self._loads = loads
        self._metrics = metrics
        self._end = end
        self._snapshotting = False
        self._wanted = False

    def kick(self, reason: str) -> None:
        """End the stream from outside: the worker connects again and starts with Hello."""
        if self._closed or self._end.expired():
            return
        self.end_reason, self._kicked = reason, True
        self._end.reschedule(asyncio.get_running_loop().time())

    def close(self, *, handed_over: bool = False) -> None:
        """The stream is ending; nothing can end it any more. `handed_over`: its worker was sent to another replica."""
        if self._closed:
            return
        self._closed = True
        if self.claim is not None:
            self._loads.remove(self.claim.worker, self, handed_over=handed_over)
            self._metrics.publish_streams.labels(self.claim.pool).dec()
        if self._offer is not None:
            self._offer.close()
        if self.leased is not None:
            self._leases.leave(self.leased)

    @property
    def in_step(self) -> bool:
        """Whether the ledger is at `seq` as far as this stream knows: no snapshot is wanted or under way."""
        return not self._snapshotting and not self._wanted

    @property
    def held(self) -> Mapping[Tier, int]:
        """Keys of each tier, counted since the snapshot; empty for a stream that goes on without one."""
        return self._keys if self._counted else {}

    async def answer(self, request: pb.PublishRequest) -> pb.PublishResponse | None:
        """Raises RefusedError to end the stream with its status, RedisError when the ledger cannot be reached."""
        # A message in the turn of the kick must not move the deadline that the kick has set.
        if self._kicked or self._end.expired():
            raise RefusedError(grpc.StatusCode.ABORTED, self.end_reason)
        self._end.reschedule(asyncio.get_running_loop().time() + SILENCE_SECONDS)
        kind = request.WhichOneof("body")
        if kind == "load":  # the heartbeat, and small: it waits for nothing
            return await self._answer(kind, request)
        async with self._gate.hold(request.ByteSize()):
            return await self._answer(kind, request)

    async def _answer(self, kind: str | None, request: pb.PublishRequest) -> pb.PublishResponse | None:
        claim = self.claim
        if claim is None:
            if kind != "hello":
                raise invalid("body", kind, "the first message of a stream is Hello")
            return await self._hello(request.hello)
        try:
            match kind:
                case "load":
                    return self._load(claim, request.load)
                case "delta":
                    return await self._delta(claim, request.delta)
                case "snapshot":
                    return await self._snapshot(claim, request.snapshot)
                case "file" if self._offer is not None:
                    return pb.PublishResponse(file_ack=self._offer.take(request.file))
        except WorkerLostError as error:
            raise RefusedError(grpc.StatusCode.ABORTED, f"{error}; connect again") from error
        except WorkerTakenError as error:
            raise RefusedError(grpc.StatusCode.ABORTED, str(error)) from error
        raise invalid("body", kind, "send Snapshot, Delta, Load or a file that was asked for after Hello")

    async def _hello(self, hello: pb.Hello) -> pb.PublishResponse:
        facts = check_hello(hello)
        ledger = self._ledger_of(hello.pool, hello.worker_id)
        owner = ledger.ownership(hello.worker_id, hello.epoch, facts)
        lease = lease_of(
            hello.pool,
            hello.worker_id,
            hello.address,
            instance=hello.instance,
            peer=self._peer,
            token=owner.token,
        )
        claim = Claim((hello.pool, hello.worker_id), ledger, owner, lease, facts)
        if self._ledger_up():
            try:
                self.seq = await self._register(claim)
            except RedisError:
                self._metrics.ledger_errors.labels("hello").inc()
        self.claim = claim
        self.end_reason = f"nothing came for {SILENCE_SECONDS:.0f} s"
        self._metrics.publish_streams.labels(hello.pool).inc()
        self._wanted = self.seq == 0
        if hello.sends_files:
            self._offer = self._files.offer(hello.pool, hello.worker_id, facts.files)
        return pb.PublishResponse(
            welcome=pb.Welcome(format_version=FORMAT_VERSION, seq=self.seq, snapshot_wanted=self._wanted)
        )

    async def _register(self, claim: Claim) -> int:
        """Make the claim good; returns the ledger's state of the epoch. Raises RefusedError, RedisError."""
        try:
            self.leased = claim.lease  # first: a call that is cut short may have taken it
            await self._leases.take(claim.lease)
            seq = await claim.ledger.register(claim.owner, claim.facts)
        except HeldError as error:
            raise RefusedError(
                grpc.StatusCode.ALREADY_EXISTS,
                f"hello.{error.field}: {getattr(claim, error.field)!r} is refused: another live worker of the pool has "
                f"it; end that one, or give this one its own. After a host's crash it is free in {LEASE_SECONDS:g} s",
            ) from error
        except EpochSupersededError as error:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, f"hello.epoch: {error}") from error
        except PartsMismatchError as error:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        self.registered = True
        return seq

    def _load(self, claim: Claim, load: pb.Load) -> pb.PublishResponse | None:
        check_load(load)
        self._loads.update(claim.worker, load, self, time.monotonic())
        if load.epoch != claim.owner.epoch:
            raise RefusedError(grpc.StatusCode.ABORTED, "load.epoch: a new epoch starts a new stream with Hello")
        if load.seq != self.seq and not self._snapshotting:
            return self._want_snapshot(f"the worker is at {load.seq}, the ledger at {self.seq}")
        # Here, since loads come all the time and have no other answer.
        if self._offer is not None and (digests := self._offer.wanted()):
            return pb.PublishResponse(files_wanted=pb.FilesWanted(digests=digests))
        return None

    async def _delta(self, claim: Claim, delta: pb.Delta) -> pb.PublishResponse | None:
        seq = check_seq("delta.seq", delta.seq)
        added = check_keys("delta.added", delta.added, claim.facts)
        removed = check_keys("delta.removed", delta.removed, claim.facts)
        check_disjoint(added, removed)
        if delta.epoch != claim.owner.epoch:
            raise RefusedError(grpc.StatusCode.ABORTED, "delta.epoch: a new epoch starts a new stream with Hello")
        if not self._ledger_up():
            self.seq = 0
        if self._snapshotting or self.seq == 0:
            return self._want_snapshot("a delta needs a snapshot before it")
        keys = self._check_growth(claim, "delta.added", added, removed)
        try:
            await claim.ledger.delta(claim.owner, seq=seq, added=added, removed=removed)
        except OutOfOrderError as error:
            return self._want_snapshot(str(error))
        except RedisError:
            # The stream goes on, so that loads still reach the gateways; a snapshot settles what was written.
            self._metrics.ledger_errors.labels("delta").inc()
            self.seq = 0
            return self._want_snapshot("the ledger is out of reach")
        self.seq, self._keys = seq, keys
        self._metrics.deltas.labels(claim.pool).inc()
        self._metrics.keys.labels(claim.pool, "add").inc(sum(map(len, added.values())))
        self._metrics.keys.labels(claim.pool, "remove").inc(sum(map(len, removed.values())))
        return pb.PublishResponse(ack=pb.Ack(seq=seq))

    async def _snapshot(self, claim: Claim, chunk: pb.SnapshotChunk) -> pb.PublishResponse | None:
        seq = check_seq("snapshot.seq", chunk.seq)
        held = check_keys("snapshot.held", chunk.held, claim.facts)
        if chunk.epoch != claim.owner.epoch:
            raise RefusedError(grpc.StatusCode.ABORTED, "snapshot.epoch: a new epoch starts a new stream with Hello")
        if not chunk.last and not any(held.values()):
            raise invalid("snapshot.held", "nothing", "only the last chunk may be empty")
        self._snapshotting, self._wanted = True, False
        if chunk.chunk == 0:
            self._keys, self._counted = {}, True
        keys = self._check_growth(claim, "snapshot.held", held, {})
        if not self._ledger_up():
            return pb.PublishResponse(snapshot_deferred=pb.SnapshotDeferred(retry_after_ms=LEDGER_RETRY_MS))
        try:
            if not self.registered:
                await self._register(claim)
            await claim.ledger.snapshot_chunk(claim.owner, seq=seq, chunk=chunk.chunk, last=chunk.last, held=held)
        except SnapshotDeferredError as error:
            return pb.PublishResponse(snapshot_deferred=pb.SnapshotDeferred(retry_after_ms=error.retry_after_ms))
        except RedisError:
            self._metrics.ledger_errors.labels("snapshot").inc()
            return pb.PublishResponse(snapshot_deferred=pb.SnapshotDeferred(retry_after_ms=LEDGER_RETRY_MS))
        except OutOfOrderError as error:
            return self._want_snapshot(f"snapshot.chunk {chunk.chunk} is {error}")
        self._keys = keys
        self._metrics.keys.labels(claim.pool, "snapshot").inc(sum(map(len, held.values())))
        if chunk.last:
            self._snapshotting = False
            self.seq = seq
            self._metrics.snapshots.labels(claim.pool).inc()
        return pb.PublishResponse(ack=pb.Ack(seq=seq, chunk=chunk.chunk))

    def _check_growth(
        self, claim: Claim, field: str, added: Mapping[Tier, list[int]], removed: Mapping[Tier, list[int]]
    ) -> dict[Tier, int]:
        """The keys of each tier after a write; refuses more than the worker's cache can have."""
        facts = claim.facts
        # Prompts that part within an index block give a key for every engine block.
        factor = max(1, facts.index_block_tokens // facts.engine_block_tokens)
        keys = dict(self._keys)
        for tier in added.keys() | removed.keys():
            keys[tier] = keys.get(tier, 0) + len(added.get(tier, ())) - len(removed.get(tier, ()))
            most = facts.capacity[tier] * factor
            if keys[tier] > most:
                raise RefusedError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{field}: {keys[tier]} keys in {tier} are refused: hello.capacity allows {most}; say there what "
                    "the cache can hold",
                )
        return keys

    def _want_snapshot(self, reason: str) -> pb.PublishResponse | None:
        """Ask once; the answer is on its way until chunk 0 comes."""
        self._snapshotting = False
        if self._wanted:
            return None
        self._wanted = True
        return pb.PublishResponse(snapshot_wanted=pb.SnapshotWanted(reason=reason))
