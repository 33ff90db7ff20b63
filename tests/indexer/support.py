"""A real indexer, real publishers and a real follower, in one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from indexer.keys import prompt_keys
from indexer.layout import Part, WorkerFacts
from indexer.reader.metrics import MirrorMetrics
from indexer.reader.pool_index import PoolIndex
from indexer.server.ledger import Ledger
from indexer.server.metrics import IndexerMetrics
from indexer.server.process import server_options
from indexer.server.service import IndexService
from indexer.server.session import Session
from tests.support import redis_client
from warmroute.config.grpc import GrpcConfig
from warmroute.config.indexer import IndexerConfig
from warmroute.redis.client import Client
from warmroute.rpc.security import ClientSecurity, ServerSecurity
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc
from worker.events import BlockRemoved, BlockStored, CacheCleared, EngineLoad
from worker.metrics import WorkerMetrics
from worker.publish.index_blocks import Changes
from worker.publish.publisher import Identity, Publisher

POOL = "a pool/with: {odd} @characters"


PART = Part(POOL)
FACTS = WorkerFacts(
    "127.0.0.1:1", "m", "e", "0", 16, 64, "f", publishes_events=True, capacity={"device": 2000, "host": 10}
)


def ledger(redis: Client) -> Ledger:
    """The ledger of the tests' pool, with a log that is soon trimmed."""
    return Ledger(redis, PART, IndexerMetrics(CollectorRegistry()), log_entries=1000)


def counted(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """The value of a counter that is declared there, without its `_total`."""
    assert name in {family.name for family in registry.collect()}
    return registry.get_sample_value(f"{name}_total", labels) or 0.0


def boots(registry: CollectorRegistry, reason: str) -> float:
    """How often a mirror of the tests' pool read a whole part."""
    return counted(registry, "warmroute_mirror_boots", pool=POOL, reason=reason)


@dataclass
class Indexer:
    service: IndexService
    server: grpc.aio.Server
    port: int
    registry: CollectorRegistry
    redis: Client
    """Its only one: of writes and heartbeats."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, name: str, **labels: str) -> float:
        return counted(self.registry, f"warmroute_indexer_{name}", **labels)

    @property
    def sessions(self) -> set[Session]:
        """For faults that are put into a stream."""
        return self.service._sessions

    @property
    def offered(self) -> dict[str, Any]:
        """What its workers offer of model files, by pool."""
        return self.service.files._pools

    def loads(self) -> dict[tuple[str, str], pb.Load]:
        """What a gateway that comes now is told, by pool and worker."""
        with self.service.loads.subscribe(frozenset()) as told:
            return {
                (each.pool, each.worker_id): each.load for each in self.service.loads.take(told, time.monotonic()).loads
            }

    async def next_load(self, worker_id: str, *, within: float = 1.0) -> None:
        """Wait until gateways are told of the worker's next report."""
        loads = self.service.loads
        with loads.subscribe(frozenset({POOL})) as told:
            loads.take(told, time.monotonic())
            async with asyncio.timeout(within):
                while True:
                    await told.wake.wait()
                    if worker_id in {each.worker_id for each in loads.take(told, time.monotonic()).loads}:
                        return


@asynccontextmanager
async def running(*coroutines) -> AsyncIterator[list[asyncio.Task]]:
    """Background tasks for the length of a block; one that fails fails the test."""
    tasks = [asyncio.get_running_loop().create_task(coroutine) for coroutine in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


@asynccontextmanager
async def indexer(
    redis_url: str, *, port: int = 0, grpc_config: GrpcConfig | None = None, **config
) -> AsyncIterator[Indexer]:
    registry = CollectorRegistry()
    settings = IndexerConfig(port=port, **config)
    async with redis_client(redis_url) as redis:
        service = IndexService(redis, settings, IndexerMetrics(registry))
        security = ServerSecurity(grpc_config or GrpcConfig())
        server = grpc.aio.server(options=server_options(settings), interceptors=security.interceptors)
        index_pb2_grpc.add_IndexServiceServicer_to_server(service, server)
        bound = security.add_port(server, "127.0.0.1", port)
        await server.start()
        try:
            async with running(service.run(), service.files.run(), service.leases.run()):
                yield Indexer(service, server, bound, registry, redis)
        finally:
            await server.stop(0)
            assert await service.ended(10)


@asynccontextmanager
async def follower(
    redis_url: str, pool: str = POOL, *, registry: CollectorRegistry | None = None
) -> AsyncIterator[PoolIndex]:
    async with redis_client(redis_url) as redis:
        index = PoolIndex(redis, pool, MirrorMetrics(registry or CollectorRegistry()))
        async with running(index.run()):
            yield index


def identity(worker_id: str, **changes) -> Identity:
    facts = {
        "pool": POOL,
        "worker_id": worker_id,
        "address": "127.0.0.1:8100",
        "model": "org/model@main",
        "engine": "test",
        "engine_version": "0",
        "engine_block_tokens": 16,
        "index_block_tokens": 64,
        "capacity_keys": 1000,
    }
    return Identity(**{**facts, **changes})


@dataclass
class Engine:
    """An engine without a model: a cache of whole 64-token index blocks, told apart by a number."""

    publisher: Publisher
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def count(self, name: str) -> float:
        return counted(self.registry, f"warmroute_worker_{name}")

    def reconnects(self) -> dict[str, float]:
        """How its streams ended: reason -> how often."""
        samples = [sample for family in self.registry.collect() for sample in family.samples]
        name = "warmroute_worker_reconnects_total"
        return {sample.labels["reason"]: sample.value for sample in samples if sample.name == name}

    def hold(self, keys: Iterable[int]) -> None:
        """Hold these keys, of no block."""
        self.publisher.state.apply("device", Changes(added=set(keys)), time.monotonic())

    def store(self, *path: int) -> None:
        """Store the last index block of a path such as (1, 2, 3), whose ancestors are stored."""
        events = []
        for part in range(4):
            depth = (len(path) - 1) * 4 + part
            events.append(BlockStored(_hash(path, part), self._parent(path, depth), tokens(path[-1])[part * 16 :][:16]))
        self.publisher.apply(events)

    def remove(self, *path: int) -> None:
        self.publisher.apply([BlockRemoved(_hash(path, part)) for part in (3, 2, 1, 0)])

    def clear(self) -> None:
        self.publisher.apply([CacheCleared()])

    def _parent(self, path: tuple[int, ...], depth: int) -> bytes | None:
        if depth == 0:
            return None
        return _hash(path, depth % 4 - 1) if depth % 4 else _hash(path[:-1], 3)


def _hash(path: tuple[int, ...], part: int) -> bytes:
    return repr((path, part)).encode()


def tokens(number: int) -> list[int]:
    return [number] * 64


def engine(
    address: str,
    worker_id: str,
    *,
    grpc_config: GrpcConfig | None = None,
    load: Callable[[], EngineLoad] = EngineLoad,
    **changes,
) -> Engine:
    registry = CollectorRegistry()
    security = ClientSecurity(grpc_config or GrpcConfig())
    publisher = Publisher(address, identity(worker_id, **changes), load, WorkerMetrics(registry), security)
    return Engine(publisher, registry)


def in_step(follower: PoolIndex, *engines: Engine) -> bool:
    """Whether the mirror holds exactly what these engines hold."""
    mirror = follower.mirror
    return set(mirror.workers) == {engine.publisher.identity.worker_id for engine in engines} and all(
        set(mirror.held(engine.publisher.identity.worker_id, "device")) == engine.publisher.state.held("device")
        for engine in engines
    )


async def raw_status(address: str, *messages: bytes) -> grpc.aio.AioRpcError:
    """How a stream ends that sends these bytes."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream = channel.stream_stream("/warmroute.v1.IndexService/Publish")()
        try:
            for message in messages:
                await stream.write(message)
            while await stream.read():
                pass
        except grpc.aio.AioRpcError as error:
            return error
    pytest.fail("the stream ended without an error")


def hello(**changes) -> pb.Hello:
    who = identity("w")
    fields = {
        "format_version": 1,
        "pool": who.pool,
        "worker_id": "w",
        "epoch": 1,
        "model": who.model,
        "engine_block_tokens": 16,
        "index_block_tokens": 64,
        "pool_fingerprint": who.fingerprint,
        "capacity": [pb.TierCapacity(tier=pb.TIER_DEVICE, keys=10)],
        "publishes_events": True,
    }
    return pb.Hello(**{**fields, **changes})


def run(coroutine) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


def keys_of(*path: int) -> list[int]:
    prompt = [token for number in path for token in tokens(number)]
    return prompt_keys(prompt, identity("").fingerprint)


async def last_status(address: str, *messages: pb.PublishRequest) -> grpc.aio.AioRpcError:
    """How a stream that is refused ends. A message that is written while the refusal arrives makes grpc's client end
    the call by itself, with INTERNAL: it is asked again."""
    for _ in range(5):
        error = await raw_status(address, *(message.SerializeToString() for message in messages))
        if error.code() is not grpc.StatusCode.INTERNAL or "execute_batch" not in (error.debug_error_string() or ""):
            break
    return error
