"""Processes of indexer, gateway and agents around scripted engines; a client of all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from indexer.reader.pool_index import PoolIndex
from tests.indexer.support import follower
from tests.ports import free_ports
from tests.support import eventually
from tests.worker.adapters.stand_in import EngineHttp, RankSockets, engine_http, kv_event_source, rank_sockets
from warmroute.cli.children import Child, stop_all

POOL = "engines"
READY_SECONDS = 60.0


@dataclass
class Engine:
    """One scripted engine, by the id that its agent gives it."""

    name: str
    http: EngineHttp
    ranks: list[RankSockets]
    agent_admin: int = 0


@asynccontextmanager
async def scripted_engine(name: str, *, ranks: int = 1, **facts: Any) -> AsyncIterator[Engine]:
    """An engine that publishes over ZMQ and answers over HTTP; without ranks it publishes nothing."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(engine_http(ranks=max(1, ranks), **facts))
        sockets = [await stack.enter_async_context(rank_sockets()) for _ in range(ranks)]
        http.sources = {str(rank): kv_event_source(*engine.bind()) for rank, engine in enumerate(sockets)}
        yield Engine(name, http, sockets)


@dataclass
class Reply:
    """What the gateway says with a reply."""

    worker: str
    matched: int


@dataclass
class Fleet:
    """Everything between a client and scripted engines."""

    port: int
    admin: int
    client: aiohttp.ClientSession
    index: PoolIndex
    """The test's own mirror of the index."""

    async def ask(self, **body: Any) -> Reply:
        """A completion through the gateway."""
        async with self.client.post(f"http://127.0.0.1:{self.port}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            headers = response.headers
            return Reply(headers["x-warmroute-worker"], int(headers["x-warmroute-matched-tokens"]))

    async def predicted(self, **body: Any) -> dict[str, int]:
        """What the gateway expects each worker to find of a completion's prompt; asking changes nothing."""
        url = f"http://127.0.0.1:{self.admin}/explain?path=/v1/completions"
        async with self.client.post(url, json=body) as response:
            explained = await response.json()
            assert response.status == 200, explained
        return {each["worker"]: each["match"]["matched_tokens"] for each in explained["decision"]["workers"]}

    async def readiness(self, admin: int) -> dict[str, Any]:
        """`/readyz` of a process; nothing while it does not listen."""
        try:
            async with self.client.get(f"http://127.0.0.1:{admin}/readyz") as response:
                return await response.json()  # type: ignore[no-any-return]
        except aiohttp.ClientConnectionError:
            return {}

    async def metric(self, name: str) -> float:
        """The sum of the gateway's series of this name."""
        async with self.client.get(f"http://127.0.0.1:{self.admin}/metrics") as response:
            lines = [line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line.startswith(name)]
        return sum(float(value) for _, value in lines)

    async def holds(self, worker: str, expected: set[int]) -> None:
        """Wait until the index has exactly these keys of the worker."""

        def same() -> bool:
            mirror = self.index.mirror
            return worker in mirror.workers and set(mirror.held(worker, "device")) == expected

        await eventually(same, within=30, what=f"{worker} holds {len(expected)} keys")


@asynccontextmanager
async def fleet_of(
    engines: Sequence[Engine], folder: Path, redis_url: str, model_path: Path, **agent: Any
) -> AsyncIterator[Fleet]:
    """Processes of their own, ready, with the gateway routing by the agents' word. `agent`: settings of all agents."""
    indexer, indexer_admin, port, admin, *agent_ports = free_ports(4 + len(engines))
    workers = [{"address": f"127.0.0.1:{engine.http.port}", "worker_id": engine.name} for engine in engines]
    pool = {"name": POOL, "model": engines[0].http.models[0]["id"], "workers": workers}
    # What is keyed too late, on cores that others use too, is routed by load, which is not the question.
    gateway = {"port": port, "admin_port": admin, "pools": [pool], "prompt_budget_seconds": 5.0}
    gateway["indexers"] = [f"127.0.0.1:{indexer}"]
    shared = {"redis": {"url": redis_url}, "indexer": {"port": indexer, "admin_port": indexer_admin, "open": True}}
    children: list[Child] = []
    async with AsyncExitStack() as stack:
        # It waits for the children, with signals held off: not on a thread.
        stack.callback(lambda: stop_all(children))
        children.append(_started(folder, "indexer", "indexer", shared))
        children.append(_started(folder, "gateway", "gateway", {**shared, "gateway": gateway}))
        for engine, agent_port in zip(engines, agent_ports, strict=True):
            engine.agent_admin = agent_port
            facts = {"engine_url": engine.http.url, "indexer": f"127.0.0.1:{indexer}", "pool": POOL}
            facts |= {"worker_id": engine.name, "model_path": str(model_path), "load_interval_seconds": 0.1}
            section = {"agent": {**facts, "admin_port": agent_port, **agent}}
            children.append(_started(folder, "agent", f"agent-{engine.name}", section))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        fleet = Fleet(port, admin, client, await stack.enter_async_context(follower(redis_url, POOL)))
        await _until_routed(fleet, sum(max(1, len(engine.ranks)) for engine in engines), children)
        yield fleet


def _started(folder: Path, command: str, name: str, config: Mapping[str, Any]) -> Child:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(dict(config)))
    return Child(name, ["warmroute", command, "--config", str(file)], file.with_suffix(".log"))


async def _until_routed(fleet: Fleet, workers: int, children: Sequence[Child]) -> None:
    async def routed() -> bool:
        for child in children:
            assert child.exit_code is None, f"{child.name} ended:\n{child.last_lines(20)}"
        pool = (await fleet.readiness(fleet.admin)).get("pools", {}).get(POOL, {})
        known = len(fleet.index.mirror.workers) == workers == pool.get("ready_workers")
        return known and pool["routing"].startswith("by cache and load")

    await eventually(routed, within=READY_SECONDS, what="the gateway routes by cache")
