"""One client for many servers: each command goes to the server that its key's topology names.

redis-py's own Sentinel pool and cluster client are not used: the first hands out connections without waiting for a
free one and reads on from a cut-off former master until its replies say READONLY, the second has no way to keep our
deadline over redirections. Here every server is a plain `Client`, and what is left is to choose it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from redis.asyncio import BlockingConnectionPool
from redis.commands.core import AsyncCoreCommands
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 - redis-py's name
    MovedError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from warmroute.redis.node import Client
from warmroute.redis.subscription import Subscription

# A resharding answers MOVED at most once or twice in a row; a failure is tried on the new master once.
REDIRECTIONS: Final = 5
FAILURES: Final = 2

Command = tuple[tuple[Any, ...], dict[str, Any]]
T = TypeVar("T")

_KEYLESS: Final = frozenset(
    {"ACL", "CLIENT", "CONFIG", "DBSIZE", "FLUSHALL", "FLUSHDB", "INFO", "PING", "REPLICAOF", "SCRIPT", "TIME", "WAIT"}
)


def key_of(arguments: Sequence[Any]) -> bytes | None:
    """The first key of a command, by which it is routed; None for commands without keys. Raises RedisError for SCAN."""
    name = str(arguments[0]).upper()
    if name == "SCAN":
        raise RedisError("SCAN goes through one server's keys: call it on each of `masters()`")
    if name.split()[0] in _KEYLESS:
        return None
    at = 1
    if name in {"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"}:
        if int(arguments[2]) == 0:
            return None
        at = 3
    elif name == "XREAD":
        at = next(index for index, part in enumerate(arguments) if part in {"STREAMS", b"STREAMS"}) + 1
    if at >= len(arguments):
        return None
    key = arguments[at]
    return key if isinstance(key, bytes) else str(key).encode()


@dataclass(eq=False, slots=True)
class Node:
    """A server in use."""

    address: tuple[str, int]
    client: Client
    users: int = 0


class Retired:
    """Closes the clients of servers that are no longer used, each when its last call has ended, which its deadline
    bounds: closing connections under their readers is not something that redis-py provides for."""

    def __init__(self) -> None:
        self._nodes: set[Node] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, node: Node) -> None:
        self._nodes.add(node)
        self.call_ended(node)

    def call_ended(self, node: Node) -> None:
        if node.users == 0 and node in self._nodes:
            self._nodes.discard(node)
            task = asyncio.get_running_loop().create_task(node.client.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closed)

    async def aclose(self) -> None:
        await asyncio.gather(*(node.client.aclose() for node in self._nodes), *self._closing, return_exceptions=True)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        # A connection that fails while it is closed is closed.
        if not task.cancelled():
            task.exception()


class Topology(Protocol):
    """Which server has a key. Methods raise RedisError when nobody can say."""

    retired: Retired

    async def node(self, key: bytes) -> Node: ...

    async def nodes(self) -> Sequence[Node]:
        """All masters."""

    def at(self, host: str, port: int, teller: Node) -> Node:
        """The server that `teller` redirects to."""

    def moved(self, slot: int, node: Node) -> None: ...

    def lost(self, node: Node) -> None:
        """It does not answer, or takes no writes: find out anew who does."""

    async def aclose(self) -> None: ...


class RoutedClient(Client):
    """A `Client` over a topology. The deadline covers finding the server, redirections and the retry.

    Commands without a key go to every master; the reply is the first one's.
    """

    _topology: Topology

    @classmethod
    def over(cls, topology: Topology, deadline_seconds: float) -> RoutedClient:
        # redis-py's client wants a pool; this one is never asked for a connection.
        client = cls(connection_pool=BlockingConnectionPool(max_connections=1))
        client._topology, client.deadline_seconds = topology, deadline_seconds
        return client

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        key = key_of(args)
        if key is not None:
            return (await self.execute_routed(key, [(args, options)]))[0]
        async with self.deadline():
            nodes = await self._topology.nodes()
        replies = [await self._attempt(node, [(args, options)]) for node in nodes]
        return replies[0][0]

    async def execute_routed(self, key: bytes, commands: Sequence[Command]) -> list[Any]:
        """Run commands on the server that has the key, in one go, and return their replies."""
        redirections = failures = 0
        node: Node | None = None
        try:
            async with self.deadline():
                while True:
                    node = await self._topology.node(key)
                    try:
                        return await self._send(node, commands)
                    except MovedError as moved:
                        redirections += 1
                        self._topology.moved(moved.slot_id, self._topology.at(moved.host, moved.port, node))
                        if redirections > REDIRECTIONS:
                            raise
                    except AskError as ask:
                        if len(commands) > 1:
                            # The slot is half moved: a key of another command may still be here, and the target would
                            # answer for it as if there were none.
                            return [(await self.execute_routed(key, [command]))[0] for command in commands]
                        return await self._send(self._topology.at(ask.host, ask.port, node), commands, asking=True)
                    except AuthenticationError:
                        raise
                    except (ConnectionError, ReadOnlyError, ClusterDownError):
                        failures += 1
                        self._topology.lost(node)
                        if failures >= FAILURES:
                            raise
        except RedisTimeoutError:
            if node is not None:
                self._topology.lost(node)
            raise

    async def _subscribe(self, channel: str) -> Subscription:
        for attempt in range(REDIRECTIONS):
            node = await self._topology.node(channel.encode())
            try:
                return await node.client._subscribe(channel)  # noqa: SLF001 - the same class
            except MovedError as moved:
                self._topology.moved(moved.slot_id, self._topology.at(moved.host, moved.port, node))
            except AuthenticationError:
                raise
            except (ConnectionError, ClusterDownError):
                self._topology.lost(node)
                if attempt + 1 >= FAILURES:
                    raise
        raise ConnectionError(f"the nodes of the Redis Cluster do not agree on who has the channel {channel}")

    async def _attempt(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        try:
            async with self.deadline():
                return await self._send(node, commands)
        except AuthenticationError:
            raise
        except (ConnectionError, ReadOnlyError, ClusterDownError, RedisTimeoutError):
            self._topology.lost(node)
            raise

    async def _send(self, node: Node, commands: Sequence[Command], *, asking: bool = False) -> list[Any]:
        node.users += 1
        try:
            if len(commands) == 1 and not asking:
                args, options = commands[0]
                return [await node.client.execute_command(*args, **options)]
            async with node.client.pipeline(transaction=False) as pipeline:
                for args, options in commands:
                    if asking:
                        pipeline.execute_command("ASKING")
                    pipeline.execute_command(*args, **options)
                replies: list[Any] = await pipeline.execute()
            return replies[1::2] if asking else replies
        finally:
            node.users -= 1
            self._topology.retired.call_ended(node)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        """Commands for one server, sent in one go. All keys must lie there: those of one part do."""
        if transaction:
            raise NotImplementedError("transactions are scripts here: see register_script")
        return _Pipeline(self)

    async def masters(self) -> Sequence[Client]:
        async with self.deadline():
            return [node.client for node in await self._topology.nodes()]

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self._topology.aclose()
        await super().aclose(close_connection_pool)


class _Pipeline(AsyncCoreCommands):
    """Collects commands; `execute` sends them."""

    # redis-py's commands announce some events; nobody listens here.
    _event_dispatcher: Any = None

    def __init__(self, client: RoutedClient) -> None:
        self._client = client
        self._commands: list[Command] = []

    async def __aenter__(self) -> _Pipeline:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._commands.clear()

    def execute_command(self, *args: Any, **options: Any) -> _Pipeline:
        self._commands.append((args, options))
        return self

    async def execute(self) -> list[Any]:
        """The replies, in order. Raises the first error among them, and RedisError."""
        if not self._commands:
            return []
        key = key_of(self._commands[0][0])
        if key is None:
            raise RedisError(f"a pipeline cannot begin with {self._commands[0][0][0]}, which names no key")
        commands, self._commands = self._commands, []
        return await self._client.execute_routed(key, commands)


class Shared(Generic[T]):
    """One run at a time of something that several may wait for; a caller that gives up ends it for nobody else."""

    def __init__(self, run: Callable[[], Awaitable[T]]) -> None:
        self._run = run
        self._task: asyncio.Task[T] | None = None

    def start(self) -> asyncio.Task[T]:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._body())
            # Nobody may be left to take a failure.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def result(self) -> T:
        return await asyncio.shield(self.start())

    async def _body(self) -> T:
        return await self._run()

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
