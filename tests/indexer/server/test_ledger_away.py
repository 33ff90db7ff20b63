"""Streams while a replica has lost Redis: loads go on, new streams begin, and workers try the other replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.chaos.cluster import RedisProcess
from tests.indexer.support import POOL, engine, follower, in_step, indexer, keys_of, run, running
from tests.support import eventually


class Cable:
    """A TCP proxy in front of Redis that can be cut: connections end and new ones are refused."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def plug(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        self._writers -= {writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def cable(port: int) -> AsyncIterator[Cable]:
    made = Cable(port)
    await made.plug()
    try:
        yield made
    finally:
        await made.cut()


def test_a_worker_that_comes_while_redis_is_away_is_heard_and_indexed_later(tmp_path) -> None:
    async def scenario() -> None:
        redis = RedisProcess(tmp_path)
        redis.start()
        try:
            async with indexer(redis.url) as index, follower(redis.url) as mirror:
                await eventually(lambda: index.service.ledger_up)
                redis.kill()
                await eventually(lambda: not index.service.ledger_up)
                worker = engine(index.address, "w")
                worker.store(1)
                async with running(worker.publisher.run()):
                    await eventually(
                        lambda: any(index.service.loads.get((POOL, "w"), session) for session in index.sessions)
                    )
                    assert worker.publisher.connected
                    redis.start()
                    await eventually(lambda: in_step(mirror, worker) and mirror.mirror.match(keys_of(1)))
                    (session,) = index.sessions
                    assert session.registered
        finally:
            redis.kill()

    run(scenario())


def test_a_worker_leaves_a_replica_that_alone_has_lost_redis(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.server.session.PATIENCE_SECONDS", (0.5, 1.0))

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            line = await stack.enter_async_context(cable(int(redis_url.rsplit(":", 1)[1].split("/")[0])))
            cut_off = await stack.enter_async_context(indexer(f"redis://127.0.0.1:{line.port}/0"))
            well = await stack.enter_async_context(indexer(redis_url))
            mirror = await stack.enter_async_context(follower(redis_url))
            engines = [engine(cut_off.address, f"w{number}") for number in range(4)]
            for worker in engines:
                worker.store(1)
            await stack.enter_async_context(running(*(worker.publisher.run() for worker in engines)))
            await eventually(lambda: in_step(mirror, *engines))
            await line.cut()
            # Quiet workers, which have nothing to write and so no way to notice by themselves.
            for worker in engines:
                worker.publisher.replicas.names = (cut_off.address, well.address)
            await eventually(lambda: well.service.streams == len(engines), within=20)
            assert not cut_off.service.streams
            for worker in engines:
                worker.store(2)
            started_at = time.monotonic()
            await eventually(lambda: in_step(mirror, *engines))
            assert time.monotonic() - started_at < 5

    run(scenario())
