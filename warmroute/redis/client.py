"""How every part talks to Redis: one server, the master that Sentinel names, or a cluster, by the same calls."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

from warmroute.config.redis import RedisConfig
from warmroute.redis.calls import Script
from warmroute.redis.cluster import ClusterClient
from warmroute.redis.connector import Connector
from warmroute.redis.subscription import Subscription

__all__ = ["Client", "connect"]

Members = set[bytes]
Scores = list[tuple[bytes, float]]
StreamEntries = list[tuple[bytes, dict[bytes, bytes]]]


class Client(Protocol):
    """All that the parts ask of Redis. Every call ends within `deadline_seconds` and raises RedisError.

    Behind it stands redis-py's client of one server, the same one with connections that ask Sentinel for the master
    (sentinel.py), or our own routing for a cluster (cluster.py). tests/warmroute/redis/test_redis_py.py has the reasons
    for what is ours, each as a test that fails once redis-py needs it no longer.
    """

    deadline_seconds: float

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Any command; in a cluster one without a key goes to every master, and the reply is the first one's."""

    def pipeline(self, transaction: bool = True) -> Any:
        """Commands on keys of one part, sent in one go. `transaction` must be False: transactions are scripts here."""

    def register_script(self, script: str | bytes) -> Script: ...

    def deadline(self) -> AbstractAsyncContextManager[None]:
        """The deadline of one call, for what is none: a pipeline."""

    def subscription(self, channel: str) -> AbstractAsyncContextManager[Subscription]:
        """Listens to a sharded channel, over a connection beyond those of the pool."""

    async def masters(self) -> Sequence[Client]:
        """A client of each server that takes writes; only a cluster has several."""

    async def hello(self) -> dict[str, Any]:
        """What the server says of itself, permitted to every user: `version`, `role`, `mode` and more."""

    async def aclose(self) -> None: ...

    # Commands, as redis-py has them.
    def ping(self) -> Awaitable[bool]: ...
    def info(self, section: str, /) -> Awaitable[dict[str, Any]]: ...
    def time(self) -> Awaitable[tuple[int, int]]: ...
    def get(self, name: str, /) -> Awaitable[bytes | None]: ...
    def getrange(self, key: str, start: int, end: int, /) -> Awaitable[bytes]: ...
    def set(self, name: str, value: Any, /, *, nx: bool, get: bool) -> Awaitable[Any]: ...
    def hgetall(self, name: str, /) -> Awaitable[dict[bytes, bytes]]: ...
    def sadd(self, name: str, /, *values: Any) -> Awaitable[int]: ...
    def srem(self, name: str, /, *values: Any) -> Awaitable[int]: ...
    def smembers(self, name: str, /) -> Awaitable[Members]: ...
    def zrange(self, name: str, start: int, end: int, /, *, withscores: bool) -> Awaitable[Scores]: ...
    def xlen(self, name: str, /) -> Awaitable[int]: ...
    def xrange(self, name: str, min: str, max: str = "+", /, *, count: int) -> Awaitable[StreamEntries]: ...  # noqa: A002
    def xrevrange(self, name: str, /, *, count: int) -> Awaitable[StreamEntries]: ...
    def xread(
        self, streams: Mapping[str, str], count: int, block: int | None, /
    ) -> Awaitable[list[tuple[bytes, StreamEntries]]]: ...


def connect(config: RedisConfig, *, connections: int = 16) -> Client:
    """A client with at most so many connections to a server, for which calls wait in turn. Opens none yet.

    Raises StartupError where TLS files cannot be used. One immediate retry covers connections that a restart left
    stale, and a failover that is over; longer outages are the callers' to wait out, with RedisError in hand.
    """
    connector = Connector(config, connections=connections)
    target = connector.target
    if target.topology == "sentinel":
        client: object = connector.sentinel_master()
    elif target.topology == "cluster":
        client = ClusterClient(target.addresses, connector.server, config.timeout_seconds)
    else:
        client = connector.local(target.socket) if target.socket else connector.server(*target.addresses[0])
    # redis-py types its replies for clients that decode them as well.
    return cast(Client, client)
