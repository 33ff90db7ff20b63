"""`IndexService` over gRPC. Replicas keep no state but their open streams; what lasts is in the ledger."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError
from redis.exceptions import RedisError, ResponseError

import warmroute
from indexer.layout import POOLS_KEY
from indexer.server.describe import describe
from indexer.server.file_store import FileStore
from indexer.server.file_transfers import FileTransfers
from indexer.server.inflight import InflightGate
from indexer.server.leases import Lease, Leases
from indexer.server.ledger import Ledger, SickPartError, check_server
from indexer.server.ledgers import Ledgers, TooManyPoolsError
from indexer.server.load_board import LoadTable
from indexer.server.metrics import IndexerMetrics
from indexer.server.session import HELLO_SECONDS, Claim, Session
from indexer.server.validation import RefusedError, check_request
from warmroute.config.indexer import IndexerConfig
from warmroute.process.log_limit import LogLimit
from warmroute.redis.client import Client
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 1.0
LEDGER_RETRY_SECONDS: Final = 0.25
DROP_SECONDS: Final = 30.0
LOST: Final = (
    "the ledger lost this stream's worker or its last writes, or another process publishes under this worker_id; "
    "connect again"
)
TAKEN: Final = "another worker holds this stream's worker_id or address by now; connect again"
LOADS_BATCH_SECONDS: Final = 0.05
LOADS_HEARTBEAT_SECONDS: Final = 1.0
ABORT_SECONDS: Final = 5.0

Context = grpc.aio.ServicerContext[Any, Any]


class IndexService(index_pb2_grpc.IndexServiceServicer):
    """The servicer. `run` writes heartbeats and sweeps until cancelled; its owner must watch it."""

    def __init__(
        self, redis: Client, config: IndexerConfig, metrics: IndexerMetrics, *, heartbeats: Client | None = None
    ) -> None:
        """`heartbeats` is a client of its own for heartbeats, so that they do not wait for a place among the writes."""
        self.loads = LoadTable()
        self.ledger_up = False
        self._up_since = time.monotonic()
        self._down_since: float | None = None
        self.trouble = ""
        """Why the ledger cannot be reached."""
        self.draining = False
        self._redis = redis
        self._heartbeats = heartbeats or redis
        self._config = config
        self._metrics = metrics
        self._ledgers = Ledgers(redis, self._heartbeats, config, metrics, pools_in_use=self._pools_in_use)
        self.leases = Leases(redis, self._heartbeats, metrics)
        """Who may say Hello; its `run` is a task of its own."""
        self._sessions: set[Session] = set()
        self._session_ended = asyncio.Event()
        self._gate = InflightGate(config.max_inflight_bytes)
        self.files = FileTransfers(
            FileStore(redis, metrics, limit_bytes=config.model_files_bytes),
            metrics,
            enabled=config.model_files_bytes > 0,
            ledger_up=lambda: self._down_since is None,
        )
        """Takes the model files that workers offer; its `run` is a task of its own."""
        self._log_limit = LogLimit()

    # --- workers -----------------------------------------------------------------------------------------------------

    # The stubs know generators only; a coroutine with read and write lets a deadline end the stream from outside.
    async def Publish(  # type: ignore[override]  # noqa: N802 - the name is the contract's
        self, request_iterator: AsyncIterator[pb.PublishRequest], context: Context
    ) -> None:
        """One worker's stream; see proto/warmroute/v1/index.proto."""
        # A deadline that cuts the very first write would leave grpc unsure whether headers went out, and the stream
        # without a status.
        await context.send_initial_metadata(())
        # Nothing waits from here until the session is counted: streams that come at once must not all pass.
        if self.draining:
            await self._refuse(context, grpc.StatusCode.UNAVAILABLE, "this indexer is ending; connect to another")
        if self.streams >= self._config.max_streams:
            await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "this indexer has all the streams it takes")
        session: Session | None = None
        try:
            async with asyncio.timeout(HELLO_SECONDS) as end:
                session = Session(
                    self._ledger,
                    self.loads,
                    self._metrics,
                    end,
                    self._gate,
                    self.files,
                    self.leases,
                    peer=context.peer(),
                    ledger_up=lambda: self._down_since is None,
                )
                self._sessions.add(session)
                try:
                    await self._converse(session, context)
                finally:
                    # Before the deadline's scope ends: from here on nothing may move the deadline.
                    self._sessions.discard(session)
                    session.close(handed_over=self.draining)
                    self._session_ended.set()
        except TimeoutError:
            await self._refuse(context, grpc.StatusCode.ABORTED, session.end_reason if session else "")
        except DecodeError:
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "body: this is no PublishRequest")
        except RefusedError as error:
            await self._refuse(context, error.status, str(error))
        except RedisError as error:
            self._metrics.ledger_errors.labels("publish").inc()
            await self._refuse(context, grpc.StatusCode.UNAVAILABLE, f"the ledger is out of reach: {error}")

    async def _converse(self, session: Session, context: Context) -> None:
        """Answer message after message; a worker sends loads all the time, so one that is to leave learns it soon."""
        told_to_leave = False
        while (request := await context.read()) is not grpc.aio.EOF:
            response = await session.answer(request)
            if response is not None:
                await context.write(response)
            if not told_to_leave and (self.draining or self._is_cut_off(session)):
                told_to_leave = True
                await context.write(pb.PublishResponse(leave=pb.Leave()))

    def _is_cut_off(self, session: Session) -> bool:
        """Whether the ledger was out of this replica's reach for so long that the worker had better try another.

        When no replica reaches it this moves workers about, seldom: their loads are taken all the same.
        """
        if self.ledger_up or self._down_since is None:
            return False
        return time.monotonic() - max(self._down_since, session.started_at) > session.patience

    @property
    def streams(self) -> int:
        """Open streams of workers, with those that have not said Hello yet."""
        return len(self._sessions)

    async def drain(self) -> None:
        """Take no new streams and send the workers elsewhere; returns when all have left, or after `drain_seconds`."""
        self.draining = True
        if not await self.ended(self._config.drain_seconds):
            logger.warning("%d workers have not left in time; they lose their streams", self.streams)

    async def ended(self, seconds: float) -> bool:
        """Whether all streams have ended within so long. One that a stopped server has cut may still be at work, and
        would open a connection to Redis again after the client was closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._sessions:
                    self._session_ended.clear()
                    await self._session_ended.wait()
        return not self._sessions

    def _ledger(self, pool: str, worker_id: str) -> Ledger:
        try:
            return self._ledgers.of(pool, worker_id)
        except TooManyPoolsError as error:
            raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"hello.pool: {error}") from error

    def _pools_in_use(self) -> set[str]:
        return {session.claim.pool for session in self._sessions if session.claim is not None}

    async def _refuse(self, context: Context, status: grpc.StatusCode, message: str) -> NoReturn:
        self._metrics.refusals.labels(status.name.lower()).inc()
        if (left_out := self._log_limit.take(status.name, time.monotonic())) is not None:
            others = f" ({left_out} others before it)" if left_out else ""
            level = logging.WARNING if status is grpc.StatusCode.FAILED_PRECONDITION else logging.INFO
            logger.log(level, "stream of %s ended: %s: %s%s", context.peer(), status.name, message, others)
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await context.abort(status, message)
        except TimeoutError:
            # The peer reads nothing: its status waits in grpc behind an answer, until it reads or the connection ends.
            raise asyncio.CancelledError from None
        raise AssertionError("abort returned")

    # --- gateways ----------------------------------------------------------------------------------------------------

    async def Loads(  # noqa: N802 - the name is the contract's
        self, request: pb.LoadsRequest, context: Context
    ) -> AsyncIterator[pb.LoadsResponse]:
        """Loads of all workers of this replica, then changes; an empty message every second shows that it lives."""
        await self._check(request, context)
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
        """The workers whose streams this replica holds; bounded by `max_streams`."""
        await self._check(request, context)
        pools, now = frozenset(request.pools), time.monotonic()
        workers = [
            describe(session, claim, self.loads, now)
            for session in self._sessions
            if (claim := session.claim) is not None and (not pools or claim.pool in pools)
        ]
        workers.sort(key=lambda worker: (worker.pool, worker.worker_id))
        return pb.DescribeResponse(version=warmroute.__version__, ledger_up=self.ledger_up, workers=workers)

    async def _check(self, request: pb.LoadsRequest | pb.DescribeRequest, context: Context) -> None:
        try:
            check_request(request)
        except RefusedError as error:
            await self._refuse(context, error.status, str(error))

    # --- housekeeping ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write heartbeats, end streams that the ledger lost, drop workers that are long silent.

        Raises UnsuitableRedisError when a server that comes into reach would evict keys of the index.
        """
        drop_at = time.monotonic() + DROP_SECONDS
        while True:
            try:
                if not self.ledger_up:
                    await check_server(self._heartbeats)
                await self._heartbeat()
                if time.monotonic() >= drop_at:
                    drop_at = time.monotonic() + DROP_SECONDS
                    await self._drop_late()
                if not self.ledger_up:
                    logger.info("the ledger is in reach")
                    self._up_since = time.monotonic()
                self.ledger_up, self._down_since, self.trouble = True, None, ""
            except RedisError as error:
                # A new reason is worth a line: a server that is back and refuses our password, say.
                if (trouble := str(error)) != self.trouble and self._log_limit.take(
                    "ledger", time.monotonic()
                ) is not None:
                    logger.warning("the ledger is out of reach: %s", trouble)
                    self.trouble = trouble
                self.ledger_up = False
                self._down_since = self._down_since or time.monotonic()
                self._metrics.ledger_errors.labels("beat").inc()
            self._metrics.ledger_up.set(self.ledger_up)
            await asyncio.sleep(BEAT_SECONDS if self.ledger_up else LEDGER_RETRY_SECONDS)

    async def _heartbeat(self) -> None:
        streams: defaultdict[Ledger, list[tuple[Session, Claim]]] = defaultdict(list)
        for session in self._sessions:
            if session.claim is not None and session.registered:
                streams[session.claim.ledger].append((session, session.claim))
        if not streams:
            await self._heartbeats.ping()
        await self._keep_leases([session for claims in streams.values() for session, _ in claims])
        for ledger, claims in streams.items():
            try:
                lost = await ledger.heartbeat([(claim.owner, session.seq) for session, claim in claims])
            except SickPartError as error:
                # This part's alone; the others go on.
                self._metrics.ledger_errors.labels("beat").inc()
                if self._log_limit.take("sick", time.monotonic()) is not None:
                    logger.error("%s", error)  # noqa: TRY400 - the traceback says nothing more
                continue
            for position in lost:
                session, _ = claims[position]
                session.kick(LOST)

    async def _keep_leases(self, sessions: Sequence[Session]) -> None:
        held: defaultdict[str, list[tuple[Session, Lease]]] = defaultdict(list)
        for session in sessions:
            if session.leased is not None:
                held[session.leased.pool].append((session, session.leased))
        for pairs in held.values():
            try:
                lost = await self.leases.keep([lease for _, lease in pairs])
            except ResponseError:  # of what the script may not do; that Redis is away is the caller's to see
                self._metrics.ledger_errors.labels("lease").inc()
                continue
            for position in lost:
                pairs[position][0].kick(TAKEN)

    async def _drop_late(self) -> None:
        late_seconds = self._config.late_drop_seconds
        # Also of pools whose workers are all gone, which this replica may never have served. Those in use are named
        # again, in case another replica has just forgotten one.
        if used := self._pools_in_use():
            await self._heartbeats.sadd(POOLS_KEY, *used)
        pools = await self._heartbeats.smembers(POOLS_KEY)
        self._ledgers.know(pool.decode(errors="replace") for pool in pools)
        by_clock = self.ledger_up and time.monotonic() - self._up_since > late_seconds
        for pool, parts in list(self._ledgers.pools.items()):  # pools may come while this waits
            remaining = 0
            for ledger in parts:
                try:
                    remaining += await self._drop_of(ledger, late_seconds, by_clock=by_clock)
                except SickPartError:  # its heartbeat says so
                    remaining += 1
            if not remaining and pool not in self._pools_in_use():
                await self._forget(pool, parts)

    async def _drop_of(self, ledger: Ledger, late_seconds: float, *, by_clock: bool) -> int:
        """Drop late workers of one part; returns how many it still has."""
        pool = ledger.part.pool
        while True:
            remaining, dropped = await ledger.drop_late(late_seconds, by_clock=by_clock)
            for worker_id in dropped:
                logger.info("worker %s of pool %s was silent for long and is dropped", worker_id, pool)
                self._metrics.dropped_workers.labels(pool).inc()
            if not dropped:
                return remaining

    async def _forget(self, pool: str, parts: Sequence[Ledger]) -> None:
        """Nobody publishes to the pool any more: leave nothing of it, here and in Redis. A Hello brings it back."""
        self._ledgers.forget(pool)
        self._metrics.forget_pool(pool)
        for ledger in parts:
            await ledger.forget()
        await self.files.forget(pool)
        await self._heartbeats.srem(POOLS_KEY, pool)
