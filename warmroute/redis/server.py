"""The client of one Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
from redis.asyncio import Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError, DataError  # noqa: A004 - redis-py's name

from warmroute.redis.calls import Calls
from warmroute.redis.subscription import Subscription


class ServerClient(Calls, Redis):  # type: ignore[misc]
    """Every command has `deadline_seconds`, waiting for a connection and the one retry included."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with self.deadline():
            return await Redis.execute_command(self, *args, **options)  # type: ignore[no-untyped-call]

    async def masters(self) -> Sequence[ServerClient]:
        return (self,)

    async def open_subscription(self, channel: str) -> Subscription:
        return await Subscription.open(self.connection_pool.make_connection(), channel)  # type: ignore[no-untyped-call]


class FastPacking:
    """A connection that writes commands by hiredis, at a ninth of the cost of redis-py's own Python, and whose broken
    writes are RedisError on uvloop too."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        try:
            await super().send_packed_command(command, check_health)  # type: ignore[misc]
        except RuntimeError as error:
            # What uvloop raises where the connection was reset before the write; asyncio's own loop, an OSError.
            raise ConnectionError(f"Redis has closed the connection: {error}") from error

    def pack_command(self, *arguments: Any) -> list[bytes]:
        name, *rest = arguments
        words = name.split() if isinstance(name, (str, bytes)) else (name,)
        try:
            return [hiredis.pack_command((*words, *rest))]
        except (TypeError, OverflowError) as error:
            raise DataError(f"{words[0]!r}: Redis takes bytes, text and numbers: {error}") from error


class TcpConnection(FastPacking, Connection):
    """Without TLS."""


class TlsConnection(FastPacking, SSLConnection):
    """With TLS."""


class UnixConnection(FastPacking, UnixDomainSocketConnection):
    """To a server on this machine."""
