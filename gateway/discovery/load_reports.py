"""What the workers report of their load: one stream to every indexer replica."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable
from typing import Final

import grpc

from gateway.discovery.metrics import DiscoveryMetrics
from gateway.routing.state.load_report import FRESH_SECONDS, Report
from gateway.routing.state.slots import SlotEstimate
from warmroute.config.grpc import GrpcConfig
from warmroute.process.addresses import resolve
from warmroute.process.watched_files import SecurityError
from warmroute.rpc.security import ClientSecurity
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
# How soon a new replica is listened to, to which workers may move as soon as it is ready.
RESOLVE_SECONDS: Final = 3.0
# The indexer sends something every second; a stream silent for longer is half open.
SILENCE_SECONDS: Final = 5.0
RETRY_SECONDS: Final = (0.2, 5.0)
REFUSALS: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT})


NO_REPORTS: Final[dict[str, Report]] = {}


class LoadReports:
    """The newest report of every worker. `run` is the one task; its owner cancels and watches it.

    Bounded by the workers that indexers know: what a worker or its indexer leaves behind goes after `FRESH_SECONDS`.
    """

    def __init__(
        self,
        indexers: Iterable[str],
        pools: Iterable[str],
        metrics: DiscoveryMetrics,
        security: ClientSecurity | None = None,
    ) -> None:
        self._indexers = tuple(indexers)
        self._security = security or ClientSecurity(GrpcConfig())
        self._pools = tuple(pools)
        self._metrics = metrics
        self._reports: dict[str, dict[str, Report]] = {pool: {} for pool in self._pools}
        self._slots: dict[tuple[str, str], SlotEstimate] = {}
        """Of workers that have a report."""
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._names: dict[str, str] = {}

    def get(self, pool: str, worker_id: str, now: float) -> Report | None:
        """The worker's report; None when there is none that is fresh."""
        report = self.of(pool).get(worker_id)
        return report if report is not None and now - report.measured_at <= FRESH_SECONDS else None

    def of(self, pool: str) -> dict[str, Report]:
        """The newest report of each of a pool's workers, by worker_id; those older than `FRESH_SECONDS` too."""
        return self._reports.get(pool, NO_REPORTS)

    async def run(self) -> None:
        """Keep one stream to every address that the indexers' names resolve to."""
        try:
            while True:
                addresses = await self._resolve()
                for address in self._streams.keys() - addresses:
                    self._streams.pop(address).cancel()
                for address in addresses - self._streams.keys():
                    self._streams[address] = asyncio.get_running_loop().create_task(
                        self._follow(address, self._names[address])
                    )
                for task in self._streams.values():
                    if task.done():
                        task.result()
                self._forget_old()
                await asyncio.sleep(RESOLVE_SECONDS)
        finally:
            for task in self._streams.values():
                task.cancel()
            await asyncio.gather(*self._streams.values(), return_exceptions=True)

    async def _resolve(self) -> set[str]:
        """All addresses behind the configured names; a name that does not resolve now keeps what it had."""
        names: dict[str, str] = {}
        for indexer in self._indexers:
            try:
                found = await resolve(indexer, RESOLVE_SECONDS)
            except (OSError, TimeoutError) as error:
                logger.warning("gateway.indexers: %s does not resolve: %s", indexer, error)
                names.update({address: name for address, name in self._names.items() if name == indexer})
                continue
            names.update(dict.fromkeys(found, indexer))
        self._names = names
        return set(names)

    async def _follow(self, address: str, name: str) -> None:
        delay, complained = RETRY_SECONDS[0], False
        while True:
            try:
                async with self._security.channel(address, name=name) as channel:
                    request = pb.LoadsRequest(format_version=FORMAT_VERSION, pools=self._pools)
                    metadata = grpc.aio.Metadata(*self._security.metadata(address))
                    stream = index_pb2_grpc.IndexServiceStub(channel).Loads(request, metadata=metadata)
                    with self._metrics.load_streams.track_inprogress():
                        while True:
                            async with asyncio.timeout(SILENCE_SECONDS):
                                response = await stream.read()
                            if not isinstance(response, pb.LoadsResponse):
                                break
                            delay, complained = RETRY_SECONDS[0], False
                            self._take(response, address)
            except (grpc.aio.AioRpcError, TimeoutError, SecurityError) as error:
                reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error) or "silent"
                refused = isinstance(error, grpc.aio.AioRpcError) and error.code() in REFUSALS
                # A replica that ends is replaced within seconds; one that stays away is told of once.
                away = delay >= RETRY_SECONDS[1] and not complained
                complained = complained or away
                log = logger.warning if refused or away or isinstance(error, SecurityError) else logger.debug
                log("load stream to indexer %s ended: %s", address, self._security.explained(reason or ""))
                delay = RETRY_SECONDS[1] if refused else delay
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, RETRY_SECONDS[1])

    def _take(self, response: pb.LoadsResponse, source: str) -> None:
        now = time.monotonic()
        for item in response.loads:
            load = item.load
            of_pool = self._reports.get(item.pool)
            if of_pool is None:
                continue
            slots = self._slots.get((item.pool, item.worker_id))
            if slots is None:
                slots = self._slots[item.pool, item.worker_id] = SlotEstimate()
            of_pool[item.worker_id] = Report(
                waiting_tokens=load.waiting_tokens,
                running_requests=load.running_requests,
                waiting_requests=load.waiting_requests,
                kv_cache_usage=load.kv_cache_usage,
                measured_at=now - item.age_ms / 1000,
                source=source,
                slots=load.max_running_requests or slots.observe(load.running_requests, load.waiting_requests),
            )
        for worker in response.gone:
            # A worker that moved is gone from one replica after another reports it.
            known = self.of(worker.pool).get(worker.worker_id)
            if known is not None and known.source == source:
                self._forget(worker.pool, worker.worker_id)

    def _forget_old(self) -> None:
        now = time.monotonic()
        for pool, reports in self._reports.items():
            for worker in [key for key, report in reports.items() if now - report.measured_at > FRESH_SECONDS]:
                self._forget(pool, worker)

    def _forget(self, pool: str, worker: str) -> None:
        del self._reports[pool][worker]
        self._slots.pop((pool, worker), None)
