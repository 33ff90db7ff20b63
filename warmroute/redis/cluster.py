"""A client of a Redis Cluster: each command goes to the node that has its key.

redis-py's own is not used for reasons that tests/warmroute/redis/test_redis_py.py checks. Here every node has a plain
client of one server, and what is left is to choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.commands.core import AsyncDataAccessCommands, AsyncManagementCommands
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

from warmroute.config.redis_url import Address
from warmroute.redis.calls import Calls
from warmroute.redis.cluster_map import ClusterMap
from warmroute.redis.server import ServerClient
from warmroute.redis.subscription import Subscription

# A resharding answers MOVED at most once or twice in a row; a failure is tried on the new master once.
REDIRECTIONS: Final = 5
FAILURES: Final = 2

Command = tuple[tuple[Any, ...], dict[str, Any]]

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


class _Commands(AsyncDataAccessCommands, AsyncManagementCommands):
    """redis-py's commands; each calls `execute_command`."""

    # A few announce events there; nobody listens here.
    _event_dispatcher: Any = None


class ClusterClient(Calls, _Commands):
    """The deadline covers reading the map, redirections and the retry."""

    def __init__(
        self, seeds: Sequence[Address], open_server: Callable[[str, int], ServerClient], deadline_seconds: float
    ) -> None:
        self._map = ClusterMap(seeds, open_server)
        self.deadline_seconds = deadline_seconds

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        key = key_of(args)
        if key is not None:
            return (await self.execute_routed(key, [(args, options)]))[0]
        replies = [await self._on_master(master, args, options) for master in await self.masters()]
        return replies[0]

    async def execute_routed(self, key: bytes, commands: Sequence[Command]) -> list[Any]:
        """Run commands on the node that has the key, in one go, and return their replies."""
        redirections = failures = 0
        address: Address | None = None
        try:
            async with self.deadline():
                while True:
                    address = await self._map.owner(key)
                    try:
                        return await _send(self._map.client(address), commands)
                    except MovedError as moved:
                        redirections += 1
                        self._map.slot_moved(moved.slot_id, _target(moved, address))
                        if redirections > REDIRECTIONS:
                            raise
                    except AskError as ask:
                        if len(commands) > 1:
                            # The slot is half moved: a key of another command may still be here, and the target would
                            # answer for it as if there were none.
                            return [(await self.execute_routed(key, [command]))[0] for command in commands]
                        return await _send(self._map.client(_target(ask, address)), commands, asking=True)
                    except AuthenticationError:
                        raise
                    except (ConnectionError, ReadOnlyError, ClusterDownError):
                        failures += 1
                        self._map.expire(address)
                        if failures >= FAILURES:
                            raise
        except RedisTimeoutError:
            self._map.expire(address)
            raise

    def pipeline(self, transaction: bool = True) -> Any:
        """Commands for one node, sent in one go. All keys must lie there: those of one part do."""
        if transaction:
            raise NotImplementedError("transactions are scripts here: see register_script")
        return _Pipeline(self)

    async def masters(self) -> Sequence[ServerClient]:
        async with self.deadline():
            return [self._map.client(address) for address in await self._map.masters()]

    async def open_subscription(self, channel: str) -> Subscription:
        for attempt in range(REDIRECTIONS):
            address = await self._map.owner(channel.encode())
            try:
                return await self._map.client(address).open_subscription(channel)
            except MovedError as moved:
                self._map.slot_moved(moved.slot_id, _target(moved, address))
            except AuthenticationError:
                raise
            except (ConnectionError, ClusterDownError):
                self._map.expire(address)
                if attempt + 1 >= FAILURES:
                    raise
        raise ConnectionError(f"the nodes of the Redis Cluster do not agree on who has the channel {channel}")

    async def aclose(self) -> None:
        await self._map.aclose()

    async def _on_master(self, master: ServerClient, args: Sequence[Any], options: dict[str, Any]) -> Any:
        try:
            return await master.execute_command(*args, **options)
        except AuthenticationError:
            raise
        except (ConnectionError, ReadOnlyError, ClusterDownError, RedisTimeoutError):
            self._map.expire()
            raise


class _Pipeline(_Commands):
    """Collects commands; `execute` sends them."""

    def __init__(self, client: ClusterClient) -> None:
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


async def _send(client: ServerClient, commands: Sequence[Command], *, asking: bool = False) -> list[Any]:
    if len(commands) == 1 and not asking:
        args, options = commands[0]
        return [await client.execute_command(*args, **options)]
    async with client.pipeline(transaction=False) as pipeline:
        for args, options in commands:
            if asking:
                # For the next command on the same connection.
                pipeline.execute_command("ASKING")
            pipeline.execute_command(*args, **options)
        replies: list[Any] = await pipeline.execute()
    return replies[1::2] if asking else replies


def _target(redirection: AskError, teller: Address) -> Address:
    """A node that does not know its own name leaves the host out."""
    return redirection.host or teller[0], redirection.port
