"""One stream to an indexer after its Welcome: loads, deltas, snapshots and files out, answers in.

One loop does all the sending, so messages are ordered and nothing waits unseen: whatever else is going on, a load goes
out every 100 ms (it is the heartbeat) and a new epoch ends the stream at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import grpc

from warmroute.v1 import index_pb2 as pb
from worker.events import Tier
from worker.metrics import WorkerMetrics
from worker.publish.file_uploads import FileUploads
from worker.publish.offered_files import ModelFiles
from worker.publish.state import TIERS, ChunkToSend, DeltaToSend, KeysByTier, PublishState, Resume

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
# Longer than the 5 s that the indexer gives a call to Redis.
ANSWER_SECONDS: Final = 15.0
# Streams spread over replicas again after a rollout of the indexer.
AGE_SECONDS: Final = (1440.0, 2160.0)

_TIERS: Final[dict[Tier, pb.Tier.ValueType]] = {"device": pb.TIER_DEVICE, "host": pb.TIER_HOST}

Call = grpc.aio.StreamStreamCall[Any, Any]


class StreamEndedError(Exception):
    """The stream is over for a reason of our own: `reason` is a label of the metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PublishStream:
    """Drives one call. `answered` says whether the indexer has acknowledged anything on it."""

    def __init__(
        self,
        call: Call,
        state: PublishState,
        load: Callable[[], pb.Load],
        metrics: WorkerMetrics,
        files: ModelFiles,
    ) -> None:
        """`load` makes the load report of this moment; the epoch is set here. `files`: what Hello offers."""
        self.answered = False
        self._call = call
        self._state = state
        self._load = load
        self._metrics = metrics
        self._epoch = state.epoch
        self._wake = asyncio.Event()
        self._uploads = FileUploads(files, wake=self._wake.set)
        # The indexer answers what was sent, one message at a time; more than this is not an answer.
        self._answers: deque[pb.PublishResponse] = deque(maxlen=64)
        self._snapshot_wanted = False
        self._leaving = False
        self._chunks: Iterator[ChunkToSend] = iter(())
        self._chunk: ChunkToSend | None = None
        self._chunk_due: float | None = None
        self._sent_at = 0.0
        self._load_due = 0.0
        self._delta_due = 0.0
        self._ends_at = time.monotonic() + random.uniform(*AGE_SECONDS)

    def leave(self) -> None:
        """End the stream as soon as nothing is on the way."""
        self._leaving = True
        self._wake.set()

    async def run(self, resume: Resume) -> None:
        """Publish until the stream ends. Raises StreamEndedError, TimeoutError, or what grpc raises."""
        if resume is Resume.SNAPSHOT:
            self._snapshot_wanted = True
        elif resume is Resume.RESEND and self._state.in_flight is not None:
            await self._send_delta(self._state.in_flight, time.monotonic())
        reader = asyncio.get_running_loop().create_task(self._read())
        reader.add_done_callback(lambda _: self._wake.set())
        try:
            while not reader.done():
                await self._step(time.monotonic())
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, min(TICK_SECONDS, self._load_due - time.monotonic()))):
                        await self._wake.wait()
            reader.result()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await self._uploads.close()

    async def _read(self) -> None:
        """Take responses off the stream; ends with the stream's own status."""
        while isinstance(response := await self._call.read(), pb.PublishResponse):
            self._answers.append(response)
            self._wake.set()
        raise StreamEndedError("closed")

    async def _step(self, now: float) -> None:
        self._wake.clear()
        while self._answers:
            self._take(self._answers.popleft(), now)
        if self._state.epoch != self._epoch:
            raise StreamEndedError("new_epoch")
        # A snapshot that has not begun, or was told to come later, is the next replica's.
        not_begun = self._chunk is not None and self._chunk.chunk == 0 and self._chunk_due is not None
        if self._leaving and (self._snapshot_wanted or not_begun or not self._unacknowledged):
            raise StreamEndedError("leave")
        # Here, between an answer and what is sent next: there may be no other moment without anything under way.
        if now >= self._ends_at and not self._unacknowledged:
            raise StreamEndedError("age")
        if self._snapshot_wanted:
            # Cleared before the copy: what is asked for after it needs another one.
            self._snapshot_wanted = False
            self._chunks = self._state.snapshot(now)
            self._next_chunk(now)
        waiting = self._unacknowledged
        if self._chunk is not None and self._chunk_due is not None and now >= self._chunk_due:
            self._chunk_due, self._sent_at = None, now
            await self._write(_chunk_message(self._epoch, self._chunk))
        elif not waiting and now >= self._delta_due and (delta := self._state.next_delta()) is not None:
            await self._send_delta(delta, now)
        elif waiting and self._chunk_due is None and now - self._sent_at > ANSWER_SECONDS:
            raise TimeoutError
        if now >= self._load_due:
            self._load_due = now + TICK_SECONDS
            load = self._load()
            load.epoch = self._epoch
            await self._write(pb.PublishRequest(load=load))
        # Last: whatever else is due has gone.
        if (file_chunk := self._uploads.next_chunk(now)) is not None:
            await self._write(pb.PublishRequest(file=file_chunk))

    @property
    def _unacknowledged(self) -> bool:
        return self._chunk is not None or self._state.in_flight is not None

    def _take(self, response: pb.PublishResponse, now: float) -> None:
        match response.WhichOneof("body"):
            case "snapshot_wanted":
                logger.info("the indexer asks for a snapshot: %s", response.snapshot_wanted.reason)
                self._snapshot_wanted = True
            case "leave":
                self._leaving = True
            case "files_wanted":
                self._uploads.want(response.files_wanted.digests)
            case "file_ack":
                self._uploads.acknowledged(response.file_ack)
            case "snapshot_deferred" if self._chunk is not None:
                wait = response.snapshot_deferred.retry_after_ms / 1000
                self._chunk_due = now + min(wait, ANSWER_SECONDS) * random.uniform(0.8, 1.2)
            case "ack":
                self.answered = True
                chunk, ack = self._chunk, response.ack
                if chunk is not None and (ack.seq, ack.chunk) == (chunk.seq, chunk.chunk):
                    if chunk.last:
                        self._state.acknowledged(ack.seq)
                        self._metrics.snapshots.inc()
                    self._next_chunk(now)
                elif chunk is None and self._state.acknowledged(ack.seq):
                    self._metrics.deltas.inc()

    def _next_chunk(self, now: float) -> None:
        self._chunk = next(self._chunks, None)
        self._chunk_due = now if self._chunk is not None else None

    async def _send_delta(self, delta: DeltaToSend, now: float) -> None:
        self._sent_at = now
        self._delta_due = now + TICK_SECONDS
        added, removed = _tier_keys(delta.added), _tier_keys(delta.removed)
        message = pb.Delta(epoch=self._epoch, seq=delta.seq, added=added, removed=removed)
        await self._write(pb.PublishRequest(delta=message))

    async def _write(self, message: pb.PublishRequest) -> None:
        """Flow control may hold a write back; a peer that takes nothing for this long is gone."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._call.write(message)


def _tier_keys(keys: KeysByTier) -> list[pb.TierKeys]:
    return [pb.TierKeys(tier=_TIERS[tier], keys=keys[tier]) for tier in TIERS if keys.get(tier)]


def _chunk_message(epoch: int, chunk: ChunkToSend) -> pb.PublishRequest:
    held = _tier_keys(chunk.held)
    message = pb.SnapshotChunk(epoch=epoch, seq=chunk.seq, chunk=chunk.chunk, last=chunk.last, held=held)
    return pb.PublishRequest(snapshot=message)
