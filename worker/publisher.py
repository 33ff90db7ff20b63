"""The worker's side of `IndexService.Publish`: one ordered stream, started over whenever it breaks.

Everything runs on one event loop. The engine's thread hands events over with `call_soon_threadsafe` and is never
blocked; what the stream cannot carry yet merges in `PublishState`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from indexer.keys import pool_fingerprint
from warmroute.metrics import WorkerMetrics
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc
from worker.events import CacheEvent, EngineLoad, Tier
from worker.index_blocks import Changes, IndexBlocks
from worker.publish_state import TIERS, ChunkToSend, DeltaToSend, KeysByTier, PublishState, Resume

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
TICK_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 10.0
BACKOFF_SECONDS: Final = (0.1, 5.0)
# Streams spread over replicas again after a rollout of the indexer.
STREAM_AGE_SECONDS: Final = (1440.0, 2160.0)

_TIERS: Final[dict[Tier, pb.Tier.ValueType]] = {"device": pb.TIER_DEVICE, "host": pb.TIER_HOST}
_CHANNEL_OPTIONS: Final = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

Stream = grpc.aio.StreamStreamCall[Any, Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is, for Hello. `capacity_keys`: index blocks that the device tier can hold."""

    pool: str
    worker_id: str
    address: str
    model: str
    engine: str
    engine_version: str
    engine_block_tokens: int
    index_block_tokens: int
    capacity_keys: int
    tokenizer_digest: str = ""
    tokenizer_bytes: int = 0

    @property
    def fingerprint(self) -> str:
        return pool_fingerprint(
            index_block_tokens=self.index_block_tokens, base_model=self.model, tokenizer=self.tokenizer_digest
        )


class StreamEndedError(Exception):
    """The stream is over for a reason of our own: `reason` is a label of the metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def new_epoch() -> int:
    return secrets.randbits(64) or 1


class Publisher:
    """Owns what the index knows of this worker. `run` is the one task; its owner cancels and watches it."""

    def __init__(
        self, indexer: str, identity: Identity, load: Callable[[], EngineLoad], metrics: WorkerMetrics
    ) -> None:
        self.identity = identity
        self.state = PublishState(new_epoch())
        self.connected = False
        self._indexer = indexer
        self._load = load
        self._metrics = metrics
        self._blocks = IndexBlocks(
            engine_block_tokens=identity.engine_block_tokens,
            index_block_tokens=identity.index_block_tokens,
            fingerprint=identity.fingerprint,
        )
        self._restart = False
        self._snapshot_wanted = asyncio.Event()
        self._acks: asyncio.Queue[pb.PublishResponse] = asyncio.Queue(maxsize=16)

    # --- from the engine ---------------------------------------------------------------------------------------------

    def apply(self, events: Sequence[CacheEvent]) -> None:
        """Take the events of one engine step; call it on the publisher's loop. Never raises for bad events."""
        orphaned, skipped = self._blocks.orphaned, self._blocks.skipped
        changes = Changes()
        if self._blocks.apply(events, changes):
            self.state.reset(new_epoch())
            self._restart = True
        self.state.apply("device", changes)
        self._metrics.orphaned_blocks.inc(self._blocks.orphaned - orphaned)
        self._metrics.skipped_events.inc(self._blocks.skipped - skipped)
        self._metrics.held_keys.labels("device").set(self.state.held_count("device"))
        self._metrics.unpublished_keys.set(self.state.unpublished)

    # --- to the indexer ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Publish until cancelled. No indexer, or one that refuses, is waited out with jittered backoff."""
        delay = BACKOFF_SECONDS[0]
        while True:
            welcomed = False
            try:
                async with self._stream() as stream:
                    welcome = await self._hello(stream)
                    welcomed = True
                    await self._publish(stream, welcome)
            except StreamEndedError as ended:
                reason, detail = ended.reason, ""
            except grpc.aio.AioRpcError as error:
                reason, detail = error.code().name.lower(), error.details() or ""
            except TimeoutError:
                reason, detail = "timeout", f"no answer for {ANSWER_SECONDS:.0f} s"
            except asyncio.InvalidStateError:
                # What grpc raises for a write on a stream that has just ended.
                reason, detail = "closed", ""
            finally:
                self._set_connected(connected=False)
            self._metrics.reconnects.labels(reason).inc()
            if reason in {"new_epoch", "age"}:
                delay = BACKOFF_SECONDS[0]
                continue
            delay = BACKOFF_SECONDS[0] if welcomed else min(delay * 2, BACKOFF_SECONDS[1])
            log = logger.warning if delay >= BACKOFF_SECONDS[1] or welcomed else logger.debug
            log("stream to indexer %s ended (%s %s), trying again", self._indexer, reason, detail)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[Stream]:
        async with grpc.aio.insecure_channel(self._indexer, options=_CHANNEL_OPTIONS) as channel:
            stream = index_pb2_grpc.IndexServiceStub(channel).Publish()
            try:
                yield stream
            finally:
                stream.cancel()

    async def _hello(self, stream: Stream) -> pb.Welcome:
        identity = self.identity
        self._restart = False
        hello = pb.Hello(
            format_version=FORMAT_VERSION,
            pool=identity.pool,
            worker_id=identity.worker_id,
            epoch=self.state.epoch,
            seq=self.state.seq,
            address=identity.address,
            model=identity.model,
            engine=identity.engine,
            engine_version=identity.engine_version,
            engine_block_tokens=identity.engine_block_tokens,
            index_block_tokens=identity.index_block_tokens,
            pool_fingerprint=identity.fingerprint,
            capacity=[pb.TierCapacity(tier=pb.TIER_DEVICE, keys=identity.capacity_keys)],
            publishes_events=True,
        )
        if identity.tokenizer_digest:
            hello.files.add(name="tokenizer.json", digest=identity.tokenizer_digest, size=identity.tokenizer_bytes)
        await _write(stream, pb.PublishRequest(hello=hello))
        async with asyncio.timeout(ANSWER_SECONDS):
            response = await stream.read()
        if not isinstance(response, pb.PublishResponse) or response.WhichOneof("body") != "welcome":
            raise StreamEndedError("no_welcome")
        return response.welcome

    async def _publish(self, stream: Stream, welcome: pb.Welcome) -> None:
        self._snapshot_wanted.clear()
        self._acks = asyncio.Queue(maxsize=16)
        self._set_connected(connected=True)
        resume = self.state.resume(ledger_seq=welcome.seq, snapshot_wanted=welcome.snapshot_wanted)
        reader = asyncio.get_running_loop().create_task(self._read(stream))
        try:
            if resume is Resume.SNAPSHOT:
                self._snapshot_wanted.set()
            elif resume is Resume.RESEND and self.state.in_flight is not None:
                await _write(stream, _delta_message(self.state.epoch, self.state.in_flight))
            await self._tick(stream, reader)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _tick(self, stream: Stream, reader: asyncio.Task[None]) -> None:
        """Every 100 ms: the load, and one delta when there are changes and none is unacknowledged."""
        now = time.monotonic()
        ends_at = now + random.uniform(*STREAM_AGE_SECONDS)
        answered_at = now
        while not reader.done():
            now = time.monotonic()
            if self._restart:
                raise StreamEndedError("new_epoch")
            if now >= ends_at and self.state.in_flight is None:
                raise StreamEndedError("age")
            if self._snapshot_wanted.is_set():
                await self._send_snapshot(stream, reader)
            elif (delta := self.state.next_delta()) is not None:
                answered_at = now
                await _write(stream, _delta_message(self.state.epoch, delta))
            elif self.state.in_flight is not None and now - answered_at > ANSWER_SECONDS:
                raise TimeoutError
            await _write(stream, self._load_message())
            while not self._acks.empty():
                self._acknowledge(self._acks.get_nowait())
            await asyncio.wait({reader}, timeout=TICK_SECONDS)
        reader.result()

    async def _read(self, stream: Stream) -> None:
        """Take responses off the stream; ends with the stream's own status."""
        while isinstance(response := await stream.read(), pb.PublishResponse):
            if response.WhichOneof("body") == "snapshot_wanted":
                logger.info("the indexer asks for a snapshot: %s", response.snapshot_wanted.reason)
                self._snapshot_wanted.set()
            else:
                await self._acks.put(response)
        raise StreamEndedError("closed")

    async def _send_snapshot(self, stream: Stream, reader: asyncio.Task[None]) -> None:
        """Send all chunks, each after the answer to the one before it."""
        epoch = self.state.epoch
        for chunk in self.state.snapshot():
            while True:
                await _write(stream, _chunk_message(epoch, chunk))
                response = await self._next_answer(chunk, reader)
                if response.WhichOneof("body") == "ack":
                    break
                await asyncio.sleep(response.snapshot_deferred.retry_after_ms / 1000 * random.uniform(0.8, 1.2))
            await _write(stream, self._load_message())
            if self._restart:
                raise StreamEndedError("new_epoch")
        self._snapshot_wanted.clear()
        self._metrics.snapshots.inc()

    async def _next_answer(self, chunk: ChunkToSend, reader: asyncio.Task[None]) -> pb.PublishResponse:
        """The answer to a chunk. Raises what ended the stream, or TimeoutError."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                answer = asyncio.ensure_future(self._acks.get())
                try:
                    await asyncio.wait({answer, reader}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not answer.done():
                        answer.cancel()
                if reader.done():
                    reader.result()
                response = answer.result()
                if response.WhichOneof("body") == "snapshot_deferred":
                    return response
                if response.ack.seq == chunk.seq and response.ack.chunk == chunk.chunk:
                    return response

    def _acknowledge(self, response: pb.PublishResponse) -> None:
        if self.state.acknowledged(response.ack.seq):
            self._metrics.deltas.inc()
            self._metrics.unpublished_keys.set(self.state.unpublished)

    def _load_message(self) -> pb.PublishRequest:
        load = self._load()
        return pb.PublishRequest(
            load=pb.Load(
                epoch=self.state.epoch,
                seq=self.state.seq,
                running_requests=load.running_requests,
                waiting_requests=load.waiting_requests,
                waiting_tokens=load.waiting_tokens,
                kv_cache_usage=min(1.0, max(0.0, load.kv_cache_usage)),
            )
        )

    def _set_connected(self, *, connected: bool) -> None:
        self.connected = connected
        self._metrics.connected.set(connected)


async def _write(stream: Stream, message: pb.PublishRequest) -> None:
    """Flow control may hold a write back; a peer that takes nothing for this long is gone."""
    async with asyncio.timeout(ANSWER_SECONDS):
        await stream.write(message)


def _tier_keys(keys: KeysByTier) -> list[pb.TierKeys]:
    return [pb.TierKeys(tier=_TIERS[tier], keys=keys[tier]) for tier in TIERS if keys.get(tier)]


def _delta_message(epoch: int, delta: DeltaToSend) -> pb.PublishRequest:
    return pb.PublishRequest(
        delta=pb.Delta(epoch=epoch, seq=delta.seq, added=_tier_keys(delta.added), removed=_tier_keys(delta.removed))
    )


def _chunk_message(epoch: int, chunk: ChunkToSend) -> pb.PublishRequest:
    return pb.PublishRequest(
        snapshot=pb.SnapshotChunk(
            epoch=epoch, seq=chunk.seq, chunk=chunk.chunk, last=chunk.last, held=_tier_keys(chunk.held)
        )
    )
