"""The admin server's three paths."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from warmroute.process.admin import AdminServer


def test_health_readiness_and_metrics() -> None:
    async def scenario() -> None:
        registry = CollectorRegistry()
        Gauge("warmroute_test_things", "Things.", registry=registry).set(3)
        state = [False]
        admin = AdminServer(registry, lambda: (state[0], {"why": "not yet"}))
        port = await admin.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                async with session.get("/healthz") as response:
                    assert response.status == 200
                async with session.get("/readyz") as response:
                    assert response.status == 503
                    assert await response.json() == {"ready": False, "why": "not yet"}
                state[0] = True
                async with session.get("/readyz") as response:
                    assert response.status == 200
                async with session.get("/metrics") as response:
                    assert "warmroute_test_things 3.0" in await response.text()
            with pytest.raises(OSError, match="address already in use"):
                await AdminServer(registry, lambda: (True, {})).start("127.0.0.1", port)
        finally:
            await admin.stop()

    asyncio.run(scenario())
