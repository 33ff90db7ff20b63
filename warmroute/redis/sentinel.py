"""Connections to the master that Sentinel names, and to the next one after a failover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection
from redis.exceptions import AuthenticationError, ConnectionError, RedisError  # noqa: A004 - redis-py's name

from warmroute.redis.calls import named_values
from warmroute.redis.server import FastPacking, ServerClient
from warmroute.redis.shared_task import SharedTask

# A former master goes on taking reads and writes for up to ten seconds after the failover, and as long as it is cut off
# from Sentinel; only Sentinel knows that it is no longer the one.
RECHECK_SECONDS: Final = 1.0


class Sentinels:
    """Asks one Sentinel after another, each with a deadline of its own: that of the client it is asked by.

    redis-py's class of this purpose asks for all masters, which a user that may only ask for one is refused.
    """

    def __init__(self, clients: Sequence[ServerClient]) -> None:
        self._clients = list(clients)

    async def discover_master(self, name: str) -> tuple[str, int]:
        """Called by redis-py's pool. Raises ConnectionError when nobody names a master."""
        troubles = []
        for client in list(self._clients):
            try:
                reply = await client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            except AuthenticationError as error:
                troubles.append(
                    f"Sentinel refuses the user or password ({error}): set redis.sentinel_username and "
                    "redis.sentinel_password or redis.sentinel_password_file"
                )
            except RedisError as error:
                troubles.append(str(error))
            else:
                if reply is not None:
                    # The one that answered is asked first from now on.
                    self._clients.remove(client)
                    self._clients.insert(0, client)
                    return reply[0].decode(), int(reply[1])
                troubles.append(f"Sentinel watches no master of the name {name!r}: see redis.url")
        raise ConnectionError(f"no master {name!r} was found through Sentinel: {'; '.join(troubles)}")

    async def aclose(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self._clients))


class MasterPool(SentinelConnectionPool, BlockingConnectionPool):
    """redis-py's pool of connections to Sentinel's master, for which calls wait in turn.

    It asks again every second in use, and closes connections to a former master as soon as their call has ended:
    redis-py's own asks when it connects alone.
    """

    def __init__(self, master: str, sentinels: Sentinels, **arguments: Any) -> None:
        super().__init__(master, sentinels, **arguments)  # type: ignore[no-untyped-call]
        self._sentinels = sentinels
        self._recheck = SharedTask(self.get_master_address)
        self._checked_at = time.monotonic()

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        if time.monotonic() - self._checked_at >= RECHECK_SECONDS:
            self._checked_at = time.monotonic()
            self._recheck.start()
        return await super().get_connection()  # type: ignore[no-untyped-call]

    async def release(self, connection: Any) -> None:
        try:
            if (connection.host, connection.port) != self.master_address:
                await connection.disconnect(nowait=True)
        finally:
            await super().release(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """With those in use: the client closes."""
        if inuse_connections:
            await self._recheck.aclose()
            await self._sentinels.aclose()
        await super().disconnect(inuse_connections)


class MasterConnection(FastPacking, SentinelManagedConnection):
    """Refuses a server that is not the master: Sentinel names the old one until the new one is promoted."""

    async def connect_to(self, address: tuple[str, int]) -> None:
        await super().connect_to(address)  # type: ignore[no-untyped-call]
        await self.send_command("HELLO", 2)
        role = named_values(await self.read_response())["role"]
        if role != "master":
            await self.disconnect(nowait=True)
            raise ConnectionError(f"{address[0]}:{address[1]} is a {role}, not yet or no longer the master")


class MasterTlsConnection(MasterConnection, SentinelManagedSSLConnection):
    """With TLS."""
