"""Model files in Redis: each once, whole or not at all, and no more than there is room for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from indexer.layout import file_key, files_key
from indexer.server.file_store import IN_USE_MS, PIECE_BYTES, FileStore, FullError
from indexer.server.metrics import IndexerMetrics
from tests.indexer.support import POOL
from tests.support import redis_client
from warmroute.model_files import FILES
from warmroute.redis.client import Client

A, B, C = "a" * 64, "b" * 64, "c" * 64


def with_store(url: str, scenario: Callable[[Client, FileStore], Awaitable[None]], limit_bytes: int = 1 << 20) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), redis_client(url) as redis:
            await scenario(redis, FileStore(redis, IndexerMetrics(CollectorRegistry()), limit_bytes=limit_bytes))

    asyncio.run(run())


async def age(redis: Client, digest: str, by_ms: int) -> None:
    await redis.zincrby(files_key(POOL), -by_ms, digest)


def test_a_file_is_there_whole(redis_url: str) -> None:
    data = os.urandom(2 * PIECE_BYTES + 7)

    async def scenario(redis: Client, store: FileStore) -> None:
        assert await store.lacking(POOL, [A, B]) == {A, B}
        await store.put(POOL, A, data)
        await store.put(POOL, A, data)
        assert await store.lacking(POOL, [A, B]) == {B}
        assert await redis.get(file_key(POOL, A)) == data
        assert await redis.ttl(file_key(POOL, A)) == -1
        assert sorted(await redis.keys()) == sorted([files_key(POOL).encode(), file_key(POOL, A).encode()])
        await store.forget(POOL)
        assert await redis.keys() == []

    with_store(redis_url, scenario)


def test_a_file_that_is_lost_while_it_is_written_is_never_seen(redis_url: str) -> None:
    """Zeros in place of what a wipe took would have the right length."""

    async def scenario(redis: Client, store: FileStore) -> None:
        call = store._call

        async def wiped(pool: str, operation: str, *arguments) -> list[bytes]:
            if arguments[1:2] == (PIECE_BYTES,):
                await redis.flushall()
            return await call(pool, operation, *arguments)

        store._call = wiped
        with pytest.raises(RedisError, match="lost"):
            await store.put(POOL, A, bytes(3 * PIECE_BYTES))
        assert await store.lacking(POOL, [A]) == {A}

    with_store(redis_url, scenario)


def test_what_is_longest_unused_makes_room_and_what_is_in_use_does_not(redis_url: str) -> None:
    async def scenario(redis: Client, store: FileStore) -> None:
        await store.put(POOL, A, bytes(400))
        await store.put(POOL, B, bytes(400))
        with pytest.raises(FullError):
            await store.put(POOL, C, bytes(400))
        assert await store.lacking(POOL, [C]) == {C}
        await age(redis, A, IN_USE_MS + 60_000)
        await age(redis, B, IN_USE_MS + 30_000)
        assert await store.lacking(POOL, [A]) == frozenset()  # used again
        await store.put(POOL, C, bytes(400))
        assert await store.lacking(POOL, [A, B, C]) == {B}
        with pytest.raises(FullError):
            await store.put(POOL, B, bytes(1001))
        assert {key for key in await redis.keys() if b":new:" in key} == set()

    with_store(redis_url, scenario, limit_bytes=1000)


def test_there_are_so_many_files_and_no_more(redis_url: str) -> None:
    async def scenario(redis: Client, store: FileStore) -> None:
        digests = [f"{number:064x}" for number in range(FILES + 5)]
        for digest in digests:
            await store.put(POOL, digest, b"x")
            await age(redis, digest, IN_USE_MS + 1000)
        assert len(await redis.keys()) == FILES + 1
        assert await store.lacking(POOL, digests) == set(digests[:5])

    with_store(redis_url, scenario)


def test_pieces_left_by_an_indexer_that_ended_go_by_themselves(redis_url: str) -> None:
    async def scenario(redis: Client, store: FileStore) -> None:
        await store._call(POOL, "piece", "token", 0, b"x", 50)
        assert await redis.pttl(f"{files_key(POOL)}:new:token") in range(51)

    with_store(redis_url, scenario)


def test_a_key_of_another_kind_is_an_error_that_callers_expect(redis_url: str) -> None:
    async def scenario(redis: Client, store: FileStore) -> None:
        await redis.set(files_key(POOL), "x")
        await redis.set(file_key(POOL, A), "x")
        with pytest.raises(RedisError, match="WRONGTYPE"):
            await store.lacking(POOL, [A])

    with_store(redis_url, scenario)
