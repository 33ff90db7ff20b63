"""Redis fails in every way that it can: workers snapshot again, nobody crashes, and the state can be seen.

Each fault goes through a real indexer, a real publisher and a real follower.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.indexer.support import POOL, Engine, Indexer, engine, follower, in_step, indexer, running
from tests.redis_servers import Server, ServerCluster, sentinel_group, server, server_cluster
from tests.support import eventually

HEAL_SECONDS = 20.0


@dataclass
class Deployment:
    """One indexer, two workers and one mirror on a Redis."""

    index: Indexer
    mirror: object
    workers: list[Engine]
    tasks: list[asyncio.Task]
    stored: int = 0

    def store(self) -> None:
        """Change both caches."""
        self.stored += 1
        for worker in self.workers:
            worker.store(self.stored)

    def value(self, name: str, **labels: str) -> float:
        """A metric of the indexer as it is exposed."""
        return self.index.registry.get_sample_value(f"warmroute_indexer_{name}", labels) or 0.0

    @property
    def snapshots(self) -> float:
        return self.value("snapshots_total", pool=POOL)

    @property
    def up(self) -> bool:
        """As /readyz answers; the gauge says the same."""
        assert self.value("ledger_up") in {0.0, 1.0}
        return self.index.service.ledger_up and self.value("ledger_up") == 1.0

    async def in_step(self) -> None:
        await eventually(
            lambda: self.up and self.mirror.connected and in_step(self.mirror, *self.workers), within=HEAL_SECONDS
        )
        assert not any(task.done() for task in self.tasks)


@asynccontextmanager
async def deployment(url: str) -> AsyncIterator[Deployment]:
    async with indexer(url) as index, follower(url) as mirror:
        workers = [engine(index.address, f"w{number}") for number in range(2)]
        async with running(*(worker.publisher.run() for worker in workers)) as tasks:
            here = Deployment(index, mirror, workers, tasks)
            here.store()
            await here.in_step()
            yield here


def go(url: str, fault: Callable[[Deployment], object]) -> None:
    async def scenario() -> None:
        async with deployment(url) as here:
            before = here.snapshots
            assert before >= 2
            await fault(here)
            here.store()
            await here.in_step()
            # The workers' own sets are what the mirror is compared with: here they are not empty.
            assert len(here.workers[0].publisher.state.held("device")) == here.stored

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.fixture
def valkey_server(tmp_path: Path):
    with server(tmp_path) as process:
        yield process


def test_restarted_empty(valkey_server: Server) -> None:
    async def fault(here: Deployment) -> None:
        before = here.snapshots
        valkey_server.kill()
        here.store()
        await eventually(lambda: not here.up and not here.mirror.connected)
        assert here.value("ledger_errors_total", operation="beat") >= 1
        # Requests go on by what the mirror last saw.
        assert here.mirror.mirror.workers
        await asyncio.to_thread(valkey_server.start)
        await here.in_step()
        assert here.snapshots >= before + 2

    go(valkey_server.url, fault)


def test_out_of_memory(valkey_server: Server) -> None:
    async def fault(here: Deployment) -> None:
        before = here.snapshots
        valkey_server.call("CONFIG", "SET", "maxmemory", "1")
        here.store()
        await eventually(lambda: not here.up)
        assert here.value("ledger_errors_total", operation="beat") >= 1
        valkey_server.call("CONFIG", "SET", "maxmemory", "0")
        await here.in_step()
        assert here.snapshots >= before + 2

    go(valkey_server.url, fault)


def test_read_only(valkey_server: Server) -> None:
    async def fault(here: Deployment) -> None:
        before = here.snapshots
        valkey_server.call("REPLICAOF", "127.0.0.1", "1")
        here.store()
        await eventually(lambda: not here.up)
        valkey_server.call("REPLICAOF", "NO", "ONE")
        await here.in_step()
        assert here.snapshots >= before + 2

    go(valkey_server.url, fault)


def test_too_few_replicas(valkey_server: Server) -> None:
    async def fault(here: Deployment) -> None:
        valkey_server.call("CONFIG", "SET", "min-replicas-to-write", "1")
        here.store()
        await eventually(lambda: not here.up)
        valkey_server.call("CONFIG", "SET", "min-replicas-to-write", "0")

    go(valkey_server.url, fault)


def test_five_seconds_slow(valkey_server: Server) -> None:
    async def fault(here: Deployment) -> None:
        here.index.redis.deadline_seconds = 2.0
        valkey_server.call("CLIENT", "PAUSE", 5000, "ALL")
        here.store()
        await eventually(lambda: not here.up)
        # Loads reach the gateways all the while, but for the one write that finds out.
        for _ in range(5):
            await here.index.next_load("w0", within=2.5)
        assert not here.up
        assert not any(task.done() for task in here.tasks)

    go(valkey_server.url, fault)


def test_a_failover_that_loses_writes(tmp_path: Path) -> None:
    with sentinel_group(tmp_path) as group:

        async def fault(here: Deployment) -> None:
            before, old, new = here.snapshots, group.first, group.second
            # The replica stops to follow, and what is written from now on is lost with the master.
            new.freeze()
            old.call("CLIENT", "KILL", "TYPE", "replica")
            here.store()
            await eventually(lambda: in_step(here.mirror, *here.workers))
            old.kill()
            new.thaw()
            # It may be over between two heartbeats, so that the ledger never looks down.
            await eventually(lambda: here.snapshots >= before + 2, within=HEAL_SECONDS)
            await here.in_step()
            assert group.master() is new

        go(group.url, fault)


def test_a_cluster_fails_over(tmp_path: Path) -> None:
    async def fault(here: Deployment) -> None:
        await asyncio.to_thread(_kill_the_owner, servers)
        here.store()

    with server_cluster(tmp_path) as servers:
        go(servers.url, fault)


def _kill_the_owner(servers: ServerCluster) -> None:
    """Of the pool's keys; the one without a replica comes back empty."""
    owner = next(each for each in servers.masters if any(b"keys" in key for key in each.call("KEYS", "wr:*")))
    owner.kill()
    if owner is not servers.masters[0]:
        owner.start()
