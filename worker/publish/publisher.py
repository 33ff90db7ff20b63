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
from dataclasses import dataclass, field, replace
from typing import Final

import grpc

from indexer.keys import pool_fingerprint
from warmroute.config.grpc import GrpcConfig
from warmroute.process.watched_files import SecurityError
from warmroute.rpc.security import ClientSecurity
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc
from worker.events import CacheEvent, EngineLoad
from worker.metrics import WorkerMetrics
from worker.publish.index_blocks import Changes, IndexBlocks
from worker.publish.offered_files import ModelFiles
from worker.publish.replicas import Replica, Replicas, UnresolvedError
from worker.publish.state import PublishState
from worker.publish.stream import ANSWER_SECONDS, Call, PublishStream, StreamEndedError

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
BACKOFF_SECONDS: Final = (0.1, 1.0)
REFUSED_SECONDS: Final = 5.0
HANDOVER_SECONDS: Final = (0.1, 0.5)
REFUSALS: Final = frozenset({"invalid_argument", "resource_exhausted", "unauthenticated"})
INSTANCE: Final = secrets.token_bytes(32)
"""This process's secret: it keeps others from saying Hello for the workers of this process while they live."""
UINT32_MAX: Final = (1 << 32) - 1

_CHANNEL_OPTIONS: Final = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is, for Hello. `capacity_keys`, `host_capacity_keys`: index blocks that each tier can hold; a
    tier without is not published. `capacity_blocks`, `host_capacity_blocks`: engine blocks that it can hold, where
    they are known, to notice events that were lost. `publishes_events`: False for engines that say nothing of their
    cache. `adapters`: names of the LoRA adapters that are served. `max_running_requests`: how many are computed at a
    time at most, 0 where that is not known or each load tells it."""

    pool: str
    worker_id: str
    address: str
    model: str
    engine: str
    engine_version: str
    engine_block_tokens: int
    index_block_tokens: int
    capacity_keys: int
    host_capacity_keys: int = 0
    capacity_blocks: int | None = None
    host_capacity_blocks: int | None = None
    publishes_events: bool = True
    adapters: tuple[str, ...] = ()
    max_running_requests: int = 0
    files: ModelFiles = field(default_factory=ModelFiles)
    """What gateways need of the model's folder; without a tokenizer in it they cannot key its prompts."""
    instance: bytes = field(default=INSTANCE, repr=False)

    @property
    def fingerprint(self) -> str:
        tokenizer = self.files.tokenizer
        return pool_fingerprint(
            index_block_tokens=self.index_block_tokens,
            base_model=self.model,
            tokenizer="" if tokenizer is None else tokenizer.digest,
        )


def new_epoch() -> int:
    return secrets.randbits(64) or 1


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    """Why a stream ended: a word, which is a label of the metric, and the indexer's words."""

    reason: str
    detail: str
    answered: bool
    """Whether the indexer had acknowledged anything."""


class Publisher:
    """Owns what the index knows of this worker. `run` is the one task; its owner cancels and watches it."""

    def __init__(
        self,
        indexer: str,
        identity: Identity,
        load: Callable[[], EngineLoad],
        metrics: WorkerMetrics,
        security: ClientSecurity | None = None,
    ) -> None:
        """`indexer`: host:port, or several with commas between; each name may resolve to many replicas.

        Raises ValueError where engine and index blocks do not line up.
        """
        self.identity = identity
        self.state = PublishState(new_epoch())
        self.connected = False
        self.trouble = "not tried yet"
        """Why the last stream ended."""
        self.replicas = Replicas(indexer.split(","))
        self._security = security or ClientSecurity(GrpcConfig())
        self._load = load
        self._metrics = metrics
        self._blocks = IndexBlocks(
            engine_block_tokens=identity.engine_block_tokens,
            index_block_tokens=identity.index_block_tokens,
            fingerprint=identity.fingerprint,
            capacity_blocks=identity.capacity_blocks,
            host_capacity_blocks=identity.host_capacity_blocks,
        )
        self._stream: PublishStream | None = None
        metrics.unpublished_keys.set_function(lambda: self.state.unpublished)
        metrics.unpublished_seconds.set_function(lambda: self.state.unpublished_seconds(time.monotonic()))

    # --- from the engine ---------------------------------------------------------------------------------------------

    def apply(self, events: Sequence[CacheEvent]) -> None:
        """Take the events of one engine step; call it on the publisher's loop. Never raises for bad events."""
        now = time.monotonic()
        orphaned, skipped, overfull = self._blocks.orphaned, self._blocks.skipped, self._blocks.overfull
        changes = Changes()
        host_changes = Changes() if self.identity.host_capacity_keys else None
        if self._blocks.apply(events, changes, host_changes):
            self.state.reset(new_epoch(), now)  # which ends the stream of the old one
        self.state.apply("device", changes, now)
        if host_changes is not None:
            self.state.apply("host", host_changes, now)
            self._metrics.held_keys.labels("host").set(self.state.held_count("host"))
        self._metrics.orphaned_blocks.inc(self._blocks.orphaned - orphaned)
        self._metrics.skipped_events.inc(self._blocks.skipped - skipped)
        self._metrics.overfull_blocks.inc(self._blocks.overfull - overfull)
        self._metrics.held_keys.labels("device").set(self.state.held_count("device"))

    def set_adapters(self, adapters: Sequence[str]) -> None:
        """Other adapters are served now: the worker introduces itself anew, once what is on the way has arrived."""
        if tuple(adapters) == self.identity.adapters:
            return
        self.identity = replace(self.identity, adapters=tuple(adapters))
        if self._stream is not None:
            self._stream.leave()

    @property
    def orphaned(self) -> int:
        """Stored blocks left out for their unknown parent."""
        return self._blocks.orphaned

    # --- to the indexer ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Publish until cancelled. No indexer, or one that refuses, is waited out with jittered backoff."""
        shortest, longest = BACKOFF_SECONDS
        delay = shortest
        while True:
            started_at = time.monotonic()
            end = await self._run_stream()
            self._set_connected(connected=False)
            self.trouble = f"{end.reason}: {end.detail}" if end.detail else end.reason
            self._metrics.reconnects.labels(end.reason).inc()
            if end.reason in {"new_epoch", "age"}:
                delay = shortest
                # At once, but an engine that starts over and over makes no storm of streams.
                await asyncio.sleep(max(0.0, shortest - (time.monotonic() - started_at)))
                continue
            if end.reason == "leave":
                # All workers of a replica that ends come at once; the others should not get them at once.
                delay = shortest
                await asyncio.sleep(random.uniform(*HANDOVER_SECONDS))
                continue
            if end.reason == "failed_precondition" and end.detail.startswith("hello.epoch"):
                # The ledger has a newer epoch than this one, which lives: a Hello of an earlier life came late.
                self.state.renew(new_epoch(), time.monotonic())
            lasted = time.monotonic() - started_at
            worked = end.answered or lasted > ANSWER_SECONDS
            # A refusal of what was sent would only come again.
            delay = REFUSED_SECONDS if end.reason in REFUSALS else shortest if worked else min(delay * 2, longest)
            log = logger.warning if worked or delay >= longest else logger.debug
            log("stream to the indexer ended after %.1f s (%s), trying again", lasted, self.trouble)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    async def _run_stream(self) -> _StreamEnd:
        """One stream from the choice of a replica to its end."""
        stream: PublishStream | None = None
        call: Call | None = None
        replica: Replica | None = None
        reason, detail = "closed", ""
        try:
            replica = await self.replicas.choose()
            async with self._call(replica) as call:
                welcome = await self._hello(call)
                self.replicas.forgive()
                stream = self._stream = PublishStream(
                    call, self.state, self._load_message, self._metrics, self.identity.files
                )
                self._set_connected(connected=True, address=replica.address)
                resume = self.state.resume(ledger_seq=welcome.seq, snapshot_wanted=welcome.snapshot_wanted)
                await stream.run(resume)
        except StreamEndedError as ended:
            reason = ended.reason
        except grpc.aio.AioRpcError as error:
            reason, detail = error.code().name.lower(), self._security.explained(error.details() or "")
        except TimeoutError:
            reason, detail = "timeout", f"no answer for {ANSWER_SECONDS:.0f} s"
        except (UnresolvedError, SecurityError) as error:
            reason, detail = "resolve" if isinstance(error, UnresolvedError) else "security", str(error)
        except asyncio.InvalidStateError:
            # What grpc raises for a write on a stream that has just ended; the status says why it has.
            if call is not None and call.done():
                reason, detail = (await call.code()).name.lower(), await call.details() or ""
        self._stream = None
        if replica is not None and reason not in {"new_epoch", "age"}:
            self.replicas.shun(replica)
        return _StreamEnd(reason, detail, answered=stream is not None and stream.answered)

    @asynccontextmanager
    async def _call(self, replica: Replica) -> AsyncIterator[Call]:
        security = self._security
        async with security.channel(replica.address, name=replica.name, options=_CHANNEL_OPTIONS) as channel:
            metadata = grpc.aio.Metadata(*security.metadata(replica.address))
            call = index_pb2_grpc.IndexServiceStub(channel).Publish(metadata=metadata)
            try:
                yield call
            finally:
                call.cancel()

    def hello(self) -> pb.Hello:
        """What introduces this worker to an indexer now."""
        identity = self.identity
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
            publishes_events=identity.publishes_events,
            adapters=identity.adapters,
            sends_files=True,
            instance=identity.instance,
        )
        if identity.host_capacity_keys:
            hello.capacity.add(tier=pb.TIER_HOST, keys=identity.host_capacity_keys)
        for file in identity.files.files:
            hello.files.add(name=file.name, digest=file.digest, size=file.size)
        return hello

    async def _hello(self, call: Call) -> pb.Welcome:
        hello = self.hello()
        async with asyncio.timeout(ANSWER_SECONDS):
            await call.write(pb.PublishRequest(hello=hello))
            response = await call.read()
        if not isinstance(response, pb.PublishResponse) or response.WhichOneof("body") != "welcome":
            raise StreamEndedError("no_welcome")
        if self.state.epoch != hello.epoch:
            raise StreamEndedError("new_epoch")
        return response.welcome

    def _load_message(self) -> pb.Load:
        """The load now; the stream adds its epoch."""
        load = self._load()
        return pb.Load(
            seq=self.state.seq,
            running_requests=load.running_requests,
            waiting_requests=load.waiting_requests,
            waiting_tokens=load.waiting_tokens,
            kv_cache_usage=min(1.0, max(0.0, load.kv_cache_usage)),
            unpublished_keys=self.state.unpublished,
            unpublished_ms=min(UINT32_MAX, int(self.state.unpublished_seconds(time.monotonic()) * 1000)),
            orphaned_blocks=self._blocks.orphaned,
            max_running_requests=min(UINT32_MAX, load.max_running_requests or self.identity.max_running_requests),
        )

    def _set_connected(self, *, connected: bool, address: str = "") -> None:
        if connected and not self.connected:
            logger.info("publishing to indexer %s as %s", address, self.identity.worker_id)
        self.connected = connected
        self._metrics.connected.set(connected)
