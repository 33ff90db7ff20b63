"""Health checks of real servers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from aiohttp import web

from gateway.discovery.health import HealthChecks
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import State, Worker
from tests.indexer.support import running
from tests.support import eventually


@asynccontextmanager
async def engine(status: list[int], port: int = 0):
    async def health(request: web.Request) -> web.Response:
        return web.Response(status=status[0])

    app = web.Application()
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def test_a_worker_becomes_ready_fails_and_recovers() -> None:
    async def scenario() -> None:
        status = [200]
        async with engine(status) as port:
            worker = Worker(Target("w", "127.0.0.1", port))
            async with running(HealthChecks(lambda: [worker]).run()):
                await eventually(lambda: worker.state(0) is State.READY)
                status[0] = 503
                await eventually(lambda: worker.state(0) is State.UNHEALTHY)
                status[0] = 200
                await eventually(lambda: worker.state(0) is State.READY)

    asyncio.run(scenario())


def test_a_worker_that_is_gone_fails_at_its_next_check() -> None:
    async def scenario() -> None:
        async with engine([200]) as port:
            worker = Worker(Target("w", "127.0.0.1", port))
            checks = HealthChecks(lambda: [worker])
            task = asyncio.ensure_future(checks.run())
            await eventually(lambda: worker.state(0) is State.READY)
        await eventually(lambda: worker.state(0) is State.UNHEALTHY)
        assert worker.failed_checks >= 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not checks._checks

    asyncio.run(scenario())


def test_a_health_reply_without_end_costs_its_bound_alone() -> None:
    """It says 200, so the worker is well; its body is not read past the bound."""

    async def scenario() -> None:
        sent = 0

        async def health(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b"x" * 65_536)
                sent += 65_536

        app = web.Application()
        app.router.add_get("/health", health)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            worker = Worker(Target("w", "127.0.0.1", runner.addresses[0][1]))
            async with running(HealthChecks(lambda: [worker]).run()):
                await eventually(lambda: worker.state(0) is State.READY)
            assert sent < 32_000_000  # what the sockets hold
        finally:
            await runner.cleanup()

    asyncio.run(scenario())


def test_a_worker_that_left_is_looked_at_and_its_end_is_told() -> None:
    async def scenario() -> None:
        told: list[Worker] = []
        known: list[Worker] = []
        checks = HealthChecks(lambda: known, on_unhealthy=told.append)
        async with running(checks.run()):
            async with engine([200]) as port:
                worker = Worker(Target("w", "127.0.0.1", port))
                known.append(worker)
                await eventually(lambda: worker.healthy)
                known.clear()
                checks.left(worker)
                assert told == []
            await eventually(lambda: told == [worker])

    asyncio.run(scenario())
