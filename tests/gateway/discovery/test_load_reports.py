"""Loads through a real indexer: fresh, stale, gone, and back after a restart."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from gateway.discovery.load_reports import LoadReports
from gateway.discovery.metrics import DiscoveryMetrics
from gateway.routing.state.load_report import FRESH_SECONDS
from tests.indexer.support import POOL, engine, indexer, running
from tests.support import eventually
from warmroute.v1 import index_pb2 as pb
from worker.events import EngineLoad


def reports_from(*indexers: str) -> tuple[LoadReports, CollectorRegistry]:
    registry = CollectorRegistry()
    return LoadReports(indexers, [POOL], DiscoveryMetrics(registry)), registry


def test_reports_arrive_change_and_go(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            reports, registry = reports_from(index.address)
            loads = [EngineLoad(1, 2, 300, 0.5)]
            worker = engine(index.address, "w", load=lambda: loads[0])
            async with running(reports.run()):
                async with running(worker.publisher.run()):
                    report = await eventually(lambda: reports.get(POOL, "w", time.monotonic()))
                    assert (report.waiting_tokens, report.running_requests, report.waiting_requests) == (300, 1, 2)
                    assert report.kv_cache_usage == 0.5
                    assert time.monotonic() - report.measured_at < 1
                    loads[0] = EngineLoad(0, 0, 7, 0.0)
                    await eventually(lambda: reports.get(POOL, "w", time.monotonic()).waiting_tokens == 7)
                    assert registry.get_sample_value("warmroute_gateway_load_streams") == 1
                await eventually(lambda: reports.get(POOL, "w", time.monotonic()) is None, within=FRESH_SECONDS / 2)

    asyncio.run(scenario())


def test_a_report_grows_stale_with_its_indexer_and_comes_back(redis_url: str) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            index = await stack.enter_async_context(indexer(redis_url))
            reports, _ = reports_from(index.address)
            worker = engine(index.address, "w")
            async with running(reports.run(), worker.publisher.run()):
                await eventually(lambda: reports.get(POOL, "w", time.monotonic()))
                await stack.aclose()
                await eventually(lambda: reports.get(POOL, "w", time.monotonic()) is None)
                async with indexer(redis_url, port=index.port):
                    await eventually(lambda: reports.get(POOL, "w", time.monotonic()), within=20)

    asyncio.run(scenario())


def test_a_worker_that_is_handed_over_keeps_its_report(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as one, indexer(redis_url) as two:
            reports, _ = reports_from(one.address, two.address)
            worker = engine(f"{one.address},{two.address}", "w")
            async with running(reports.run(), worker.publisher.run()):
                await eventually(lambda: reports.get(POOL, "w", time.monotonic()))
                first, second = (one, two) if one.service.streams else (two, one)
                missed: list[float] = []

                def moved() -> bool:
                    report = reports.get(POOL, "w", time.monotonic())
                    if report is None:
                        missed.append(time.monotonic())
                    return report is not None and report.source == second.address

                async with running(first.service.drain()):
                    await eventually(moved)
                assert not missed
                assert not first.service.streams

    asyncio.run(scenario())


def test_a_departure_that_another_replica_tells_late_changes_nothing() -> None:
    reports, _ = reports_from("127.0.0.1:1")
    key = {"pool": POOL, "worker_id": "w"}
    reports._take(pb.LoadsResponse(loads=[pb.WorkerLoad(**key, load=pb.Load(waiting_tokens=7))]), "new")
    reports._take(pb.LoadsResponse(gone=[pb.WorkerRef(**key)]), "old")
    report = reports.get(POOL, "w", time.monotonic())
    assert report is not None
    assert report.waiting_tokens == 7
    reports._take(pb.LoadsResponse(gone=[pb.WorkerRef(**key)]), "new")
    assert reports.get(POOL, "w", time.monotonic()) is None


def test_slots_are_learned_from_the_reports(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index:
            reports, _ = reports_from(index.address)
            loads = [EngineLoad(8, 0, 0, 0.5)]
            worker = engine(index.address, "w", load=lambda: loads[0])
            async with running(reports.run(), worker.publisher.run()):
                report = await eventually(lambda: reports.get(POOL, "w", time.monotonic()))
                assert report.slots == 0
                loads[0] = EngineLoad(8, 3, 300, 0.5)
                await eventually(lambda: reports.get(POOL, "w", time.monotonic()).slots == 8)
                loads[0] = EngineLoad(2, 0, 0, 0.5, max_running_requests=64)  # what the engine tells goes first
                await eventually(lambda: reports.get(POOL, "w", time.monotonic()).slots == 64)

    asyncio.run(scenario())


def test_two_replicas_are_both_listened_to_and_a_name_that_does_not_resolve_is_no_end(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as one, indexer(redis_url) as two:
            reports, _ = reports_from(one.address, two.address, "name.invalid:50051")
            a, b = engine(one.address, "a"), engine(two.address, "b")
            async with running(reports.run(), a.publisher.run(), b.publisher.run()):
                for name in ("a", "b"):
                    await eventually(lambda name=name: reports.get(POOL, name, time.monotonic()))

    asyncio.run(scenario())
