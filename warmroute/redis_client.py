"""How every part connects to Redis: one place for deadlines and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError as RedisTimeoutError

from warmroute.config import RedisConfig


class Client(Redis):
    """Every command has `deadline_seconds`, waiting for a connection and the one retry included.

    redis-py's own `socket_timeout` is not used: it goes through `asyncio.wait_for`, which up to Python 3.11 swallows a
    cancellation that arrives while a write completes, and a task that cannot be cancelled cannot be ended.
    """

    deadline_seconds = 5.0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with self.deadline():
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """For what is no single command, such as a pipeline. Raises redis.exceptions.TimeoutError."""
        try:
            async with asyncio.timeout(self.deadline_seconds):
                yield
        except TimeoutError as error:
            raise RedisTimeoutError(f"Redis did not answer within {self.deadline_seconds} s") from error


def connect(config: RedisConfig, *, connections: int = 16) -> Client:
    """A client with at most so many connections, for which calls wait in turn.

    One immediate retry covers pooled connections that a restart of the server left stale; longer outages are their
    callers' to wait out.
    """
    pool = BlockingConnectionPool.from_url(
        config.url,
        max_connections=connections,
        timeout=config.timeout_seconds,
        socket_timeout=None,
        socket_connect_timeout=config.timeout_seconds,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 1),
        protocol=2,
    )
    client = cast(Client, Client.from_pool(pool))
    client.deadline_seconds = config.timeout_seconds
    return client
