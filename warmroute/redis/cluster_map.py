"""Which node of a Redis Cluster has a key, and a client of each node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AuthenticationError, ConnectionError, RedisError  # noqa: A004 - redis-py's name

from warmroute.config.redis_url import Address
from warmroute.redis.server import ServerClient
from warmroute.redis.shared_task import SharedTask

NO_OWNER: Final = "no node of the Redis Cluster serves slot {}: see CLUSTER INFO on any node"
# A node that is asked for the map is one of several: the next one is asked soon.
MAP_SECONDS: Final = 1.0


class ClusterMap:
    """The map of slots, read from any node that answers; again when a node is lost or says that a slot has moved.

    Clients are as many as the cluster has nodes: those of nodes that a new map does not name are closed.
    """

    def __init__(self, seeds: Sequence[Address], open_server: Callable[[str, int], ServerClient]) -> None:
        self._seeds = tuple(seeds)
        self._open_server = open_server
        self._owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._clients: dict[Address, ServerClient] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._known = False
        self._lost: set[Address] = set()
        """Nodes that failed since the map was read."""
        self._reading = SharedTask(self._read)

    async def owner(self, key: bytes) -> Address:
        """Raises ConnectionError while no node answers, or none serves the key's slot."""
        if not self._known:
            await self._reading.finished()
        slot = key_slot(key)
        owner = self._owners[slot]
        if owner is None:
            self._known = False
            raise ConnectionError(NO_OWNER.format(slot))
        return owner

    async def masters(self) -> list[Address]:
        if not self._known:
            await self._reading.finished()
        return list(dict.fromkeys(filter(None, self._owners)))

    def client(self, address: Address) -> ServerClient:
        if address not in self._clients:
            self._clients[address] = self._open_server(*address)
        return self._clients[address]

    def slot_moved(self, slot: int, owner: Address) -> None:
        """Use the new owner at once, and read the map meanwhile."""
        self._owners[slot] = owner
        self._reading.start()

    def expire(self, address: Address | None = None) -> None:
        """A node, the one at `address` if that is known, does not answer or takes no writes: read the map before the
        next use, from others first."""
        self._known = False
        if address is not None:
            self._lost.add(address)

    async def aclose(self) -> None:
        await self._reading.aclose()
        for task in self._closing:
            task.cancel()
        clients = (client.aclose() for client in self._clients.values())
        await asyncio.gather(*clients, *self._closing, return_exceptions=True)

    async def _read(self) -> None:
        """Ask nodes in random order, so that one that is cut off and knows old owners is not asked for ever; those that
        have just failed last, since one that hangs costs `MAP_SECONDS`."""
        known = [address for address in self._clients if address not in self._seeds]
        candidates = [*random.sample(known, len(known)), *random.sample(self._seeds, len(self._seeds))]
        candidates.sort(key=self._lost.__contains__)
        troubles = []
        for host, port in candidates:
            # A client of its own: all connections of the others may hang.
            client = self._open_server(host, port)
            client.deadline_seconds = min(client.deadline_seconds, MAP_SECONDS)
            try:
                # Not the client's own callback for this command: its shape differs between releases of redis-py.
                reply = await client.execute_command("CLUSTER", "SLOTS")
            except AuthenticationError:
                raise
            except RedisError as error:
                troubles.append(f"{host}:{port}: {error}")
                continue
            finally:
                await client.aclose()
            self._take(reply, host)
            return
        raise ConnectionError(f"no node of the Redis Cluster answers: {'; '.join(troubles)}")

    def _take(self, reply: list[Any], asked_host: str) -> None:
        """CLUSTER SLOTS: rows of first slot, last slot, [host, port, ...] of the master, then of replicas."""
        owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, (host, port, *_), *_ in reply:
            name = host.decode() if host else ""
            address = (asked_host if name in {"", "?"} else name, int(port))
            owners[first : last + 1] = [address] * (last + 1 - first)
        self._owners, self._known = owners, True
        self._lost.clear()
        for address in self._clients.keys() - set(owners):
            task = asyncio.get_running_loop().create_task(_close_unused(self._clients.pop(address)))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _close_unused(client: ServerClient) -> None:
    """Once its last call has ended by its deadline: redis-py cannot close connections under their readers."""
    try:
        await asyncio.sleep(client.deadline_seconds)
    finally:
        await client.aclose()
