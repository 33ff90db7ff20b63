"""The master that Sentinel names, and the next one after a failover."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import AuthenticationError, ConnectionError, RedisError  # noqa: A004 - redis-py's name

from warmroute.redis.node import Client
from warmroute.redis.routed import Node, Retired, Shared

# A former master goes on taking reads and writes for up to ten seconds after the failover, and as long as it is cut off
# from Sentinel; only Sentinel knows that it is no longer the one.
RECHECK_SECONDS: Final = 1.0


class SentinelTopology:
    """Every key on one server: the master. Asks the Sentinels when there is none, and again every second in use."""

    def __init__(self, sentinels: Sequence[Client], master: str, open_server: Callable[[str, int], Client]) -> None:
        self._sentinels = list(sentinels)
        self._master = master
        self._open_server = open_server
        self._node: Node | None = None
        self.retired = Retired()
        self._checked_at = 0.0
        self._finding = Shared(self._find)

    async def node(self, key: bytes = b"") -> Node:
        """Raises ConnectionError while no Sentinel names a server that is the master."""
        if self._node is None:
            return await self._finding.result()
        if time.monotonic() - self._checked_at >= RECHECK_SECONDS:
            self._checked_at = time.monotonic()
            self._finding.start()
        return self._node

    async def nodes(self) -> Sequence[Node]:
        return (await self.node(),)

    def at(self, host: str, port: int, teller: Node) -> Node:
        raise ConnectionError(
            f"{host}:{port} was named by a node of a cluster: redis.url must be redis+cluster:// for one"
        )

    def moved(self, slot: int, node: Node) -> None:
        """Never: `at` raises before."""

    def lost(self, node: Node) -> None:
        if node is self._node:
            self._node = None
            self.retired.add(node)

    async def aclose(self) -> None:
        await self._finding.aclose()
        await self.retired.aclose()
        for client in (*self._sentinels, *([self._node.client] if self._node else ())):
            await client.aclose()

    async def _find(self) -> Node:
        troubles = []
        for sentinel in list(self._sentinels):
            try:
                address = await self._ask(sentinel)
                if self._node is not None and self._node.address == address:
                    node = self._node
                else:
                    node = await self._open_master(address)
            except AuthenticationError:
                raise
            except RedisError as error:
                troubles.append(str(error))
                continue
            # The one that answered is asked first from now on.
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            former, self._node, self._checked_at = self._node, node, time.monotonic()
            if former is not None and former is not node:
                self.retired.add(former)
            return node
        raise ConnectionError(f"no master {self._master!r} was found through Sentinel: {'; '.join(troubles)}")

    async def _ask(self, sentinel: Client) -> tuple[str, int]:
        try:
            reply = await sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._master)
        except AuthenticationError as error:
            raise ConnectionError(
                f"Sentinel refuses the user or password ({error}): set redis.sentinel_username and "
                "redis.sentinel_password or redis.sentinel_password_file"
            ) from error
        if reply is None:
            raise ConnectionError(f"Sentinel watches no master of the name {self._master!r}: see redis.url")
        host, port = reply
        return host.decode(), int(port)

    async def _open_master(self, address: tuple[str, int]) -> Node:
        """Sentinel names a server before it is promoted, and the old one until then."""
        client = self._open_server(*address)
        try:
            _check_master(address, await client.hello())
        except BaseException:
            await client.aclose()
            raise
        return Node(address, client)


def _check_master(address: tuple[str, int], said: Mapping[str, Any]) -> None:
    if said["role"] != "master":
        raise ConnectionError(f"{address[0]}:{address[1]} is a {said['role']}, not yet or no longer the master")
