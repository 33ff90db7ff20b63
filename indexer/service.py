"""`IndexService` over gRPC. Replicas keep no state but their open streams; what lasts is in the ledger."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, NoReturn

import grpc
from redis.asyncio import Redis
from redis.exceptions import RedisError

from indexer.layout import Part
from indexer.ledger import Ledger, check_server
from indexer.loads import LoadTable
from indexer.session import SILENCE_SECONDS, Claim, Session
from indexer.validation import FORMAT_VERSION, RefusedError
from warmroute.config import IndexerConfig
from warmroute.metrics import IndexerMetrics
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 1.0
DROP_SECONDS: Final = 30.0
LOADS_BATCH_SECONDS: Final = 0.05
LOADS_HEARTBEAT_SECONDS: Final = 1.0
# A pool costs one ledger object here; pools are few, and a worker with a bad name must not fill memory.
POOL_LIMIT: Final = 1024

Context = grpc.aio.ServicerContext[Any, Any]


class IndexService(index_pb2_grpc.IndexServiceServicer):
    """The servicer. `run` beats and sweeps until cancelled; its owner must watch it."""

    def __init__(
        self, redis: Redis, config: IndexerConfig, metrics: IndexerMetrics, *, beats: Redis | None = None
    ) -> None:
        """`beats` is a client of its own for heartbeats, so that they do not wait for a place among the writes."""
        self.loads = LoadTable()
        self.ledger_up = False
        self._redis = redis
        self._beats = beats or redis
        self._config = config
        self._metrics = metrics
        self._ledgers: dict[str, Ledger] = {}
        self._sessions: set[Session] = set()

    # --- workers -----------------------------------------------------------------------------------------------------

    # The stubs know generators only; a coroutine with read and write lets a deadline end the stream from outside.
    async def Publish(  # type: ignore[override]  # noqa: N802 - the name is the contract's
        self, request_iterator: AsyncIterator[pb.PublishRequest], context: Context
    ) -> None:
        """One worker's stream; see proto/warmroute/v1/index.proto."""
        if len(self._sessions) >= self._config.max_streams:
            await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "this indexer has all the streams it takes")
        # A deadline that cuts the very first write would leave grpc unsure whether headers went out, and the stream
        # without a status.
        await context.send_initial_metadata(())
        session: Session | None = None
        try:
            async with asyncio.timeout(SILENCE_SECONDS) as end:
                session = Session(self._ledger, self.loads, self._metrics, end, ledger_up=lambda: self.ledger_up)
                self._sessions.add(session)
                try:
                    while (request := await context.read()) is not grpc.aio.EOF:
                        response = await session.answer(request)
                        if response is not None:
                            await context.write(response)
                finally:
                    # Before the deadline's scope ends: from here on nothing may move the deadline.
                    self._sessions.discard(session)
                    session.close()
        except TimeoutError:
            await self._refuse(context, grpc.StatusCode.ABORTED, session.end_reason if session else "")
        except RefusedError as error:
            await self._refuse(context, error.status, str(error))
        except RedisError as error:
            self._metrics.ledger_errors.labels("publish").inc()
            await self._refuse(context, grpc.StatusCode.UNAVAILABLE, f"the ledger is out of reach: {error}")

    def _ledger(self, pool: str) -> Ledger:
        ledger = self._ledgers.get(pool)
        if ledger is None:
            if len(self._ledgers) >= POOL_LIMIT:
                used = {session.claim.pool for session in self._sessions if session.claim is not None}
                self._ledgers = {name: known for name, known in self._ledgers.items() if name in used}
            if len(self._ledgers) >= POOL_LIMIT:
                raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"hello.pool: more than {POOL_LIMIT} pools")
            ledger = Ledger(
                self._redis, Part(pool), self._metrics, beats=self._beats, log_entries=self._config.log_entries
            )
            self._ledgers[pool] = ledger
        return ledger

    async def _refuse(self, context: Context, status: grpc.StatusCode, message: str) -> NoReturn:
        self._metrics.refusals.labels(status.name.lower()).inc()
        logger.info("stream of %s ended: %s: %s", context.peer(), status.name, message)
        await context.abort(status, message)
        raise AssertionError("abort returned")

    # --- gateways ----------------------------------------------------------------------------------------------------

    async def Loads(  # noqa: N802 - the name is the contract's
        self, request: pb.LoadsRequest, context: Context
    ) -> AsyncIterator[pb.LoadsResponse]:
        """Loads of all workers of this replica, then changes; an empty message every second shows that it lives."""
        if request.format_version != FORMAT_VERSION:
            await self._refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"format_version: {request.format_version} is refused: this indexer speaks version {FORMAT_VERSION}",
            )
        subscribers = self._metrics.load_subscribers
        with self.loads.subscribe(frozenset(request.pools)) as subscription, subscribers.track_inprogress():
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOADS_HEARTBEAT_SECONDS):
                        await subscription.wake.wait()
                yield self.loads.take(subscription, time.monotonic())
                await asyncio.sleep(LOADS_BATCH_SECONDS)

    # --- tools -------------------------------------------------------------------------------------------------------

    async def Describe(  # noqa: N802 - the name is the contract's
        self, request: pb.DescribeRequest, context: Context
    ) -> pb.DescribeResponse:
        """The workers whose streams this replica holds."""
        workers = [
            pb.WorkerDescription(pool=claim.pool, worker_id=claim.worker[1], epoch=claim.owner.epoch, seq=session.seq)
            for session in self._sessions
            if (claim := session.claim) is not None
        ]
        return pb.DescribeResponse(ledger_up=self.ledger_up, workers=workers)

    # --- housekeeping ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write heartbeats, end streams that the ledger lost, drop workers that are long silent.

        Raises UnsuitableRedisError when a server that comes into reach would evict keys of the index.
        """
        drop_at = time.monotonic() + DROP_SECONDS
        complained = False
        while True:
            try:
                if not self.ledger_up:
                    await check_server(self._beats)
                await self._beat()
                if time.monotonic() >= drop_at:
                    drop_at = time.monotonic() + DROP_SECONDS
                    await self._drop_late()
                if not self.ledger_up:
                    logger.info("the ledger is in reach")
                self.ledger_up = True
            except RedisError as error:
                if self.ledger_up or not complained:
                    logger.warning("the ledger is out of reach: %s", error)
                self.ledger_up, complained = False, True
                self._metrics.ledger_errors.labels("beat").inc()
            self._metrics.ledger_up.set(self.ledger_up)
            await asyncio.sleep(BEAT_SECONDS)

    async def _beat(self) -> None:
        streams: defaultdict[Ledger, list[tuple[Session, Claim]]] = defaultdict(list)
        for session in self._sessions:
            if session.claim is not None:
                streams[session.claim.ledger].append((session, session.claim))
        if not streams:
            await self._beats.ping()
        for ledger, claims in streams.items():
            for position in await ledger.beat([(claim.owner, session.seq) for session, claim in claims]):
                session, _ = claims[position]
                session.kick("the ledger lost this stream's worker or its last writes; connect again")

    async def _drop_late(self) -> None:
        for pool, ledger in list(self._ledgers.items()):  # pools may come while this waits
            for worker_id in await ledger.drop_late(self._config.late_drop_seconds):
                logger.info("worker %s of pool %s was silent for long and is dropped", worker_id, pool)
                self._metrics.dropped_workers.labels(pool).inc()
