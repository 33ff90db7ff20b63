"""Which node of a Redis Cluster has a key."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AuthenticationError, ConnectionError, RedisError  # noqa: A004 - redis-py's name

from warmroute.config.redis_url import Address
from warmroute.redis.node import QUERY_SECONDS, Client
from warmroute.redis.routed import Node, Retired, Shared

NO_OWNER: Final = "no node of the Redis Cluster serves slot {}: see CLUSTER INFO on any node"


class ClusterTopology:
    """The map of slots, read from any node that answers; again when a node is lost or says that a slot has moved.

    Clients are as many as the cluster has nodes: those that a new map does not name are closed.
    """

    def __init__(self, seeds: Sequence[Address], open_server: Callable[[str, int], Client]) -> None:
        self._seeds = tuple(seeds)
        self._open_server = open_server
        self._slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._nodes: dict[Address, Node] = {}
        self.retired = Retired()
        self._known = False
        self._reading = Shared(self._read)

    async def node(self, key: bytes) -> Node:
        """Raises ConnectionError while no node answers, or none serves the key's slot."""
        if not self._known:
            await self._reading.result()
        slot = key_slot(key)
        address = self._slots[slot]
        if address is None:
            self._known = False
            raise ConnectionError(NO_OWNER.format(slot))
        return self._node(address)

    async def nodes(self) -> Sequence[Node]:
        if not self._known:
            await self._reading.result()
        return [self._node(address) for address in dict.fromkeys(filter(None, self._slots))]

    def at(self, host: str, port: int, teller: Node) -> Node:
        # A node that does not know its own name leaves the host out.
        return self._node((host or teller.address[0], port))

    def moved(self, slot: int, node: Node) -> None:
        self._slots[slot] = node.address
        self._reading.start()

    def lost(self, node: Node) -> None:
        self._known = False
        if self._nodes.get(node.address) is node:
            del self._nodes[node.address]
            self.retired.add(node)

    async def aclose(self) -> None:
        await self._reading.aclose()
        await self.retired.aclose()
        for node in self._nodes.values():
            await node.client.aclose()

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(address, self._open_server(*address))
        return node

    async def _read(self) -> None:
        """Ask nodes in random order, so that one that is cut off and knows old owners is not asked for ever."""
        known = [address for address in self._nodes if address not in self._seeds]
        candidates = [*random.sample(known, len(known)), *random.sample(self._seeds, len(self._seeds))]
        troubles = []
        for host, port in candidates:
            client = self._open_server(host, port)
            client.deadline_seconds = min(client.deadline_seconds, QUERY_SECONDS)
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
        slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, (host, port, *_), *_ in reply:
            name = host.decode() if host else ""
            address = (asked_host if name in {"", "?"} else name, int(port))
            slots[first : last + 1] = [address] * (last + 1 - first)
        self._slots, self._known = slots, True
        owners = set(slots)
        for address in [address for address in self._nodes if address not in owners]:
            self.retired.add(self._nodes.pop(address))
