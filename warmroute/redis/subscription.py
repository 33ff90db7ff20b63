"""A connection that listens to one sharded channel (SSUBSCRIBE, Redis 7 or any Valkey)."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's name


class Subscription:
    """One subscribed connection. It never comes back by itself: whoever reads opens another.

    redis-py's own PubSub is not used: it reconnects within a read, and messages that were lost meanwhile go unnoticed.
    """

    def __init__(self, connection: Any, channel: str) -> None:
        self._connection = connection
        self.channel = channel

    @classmethod
    async def open(cls, connection: Any, channel: str) -> Subscription:
        """Connect and subscribe, over one of redis-py's connections that is used for nothing else.

        Raises RedisError, MovedError where another node of a cluster has the channel. The caller sets the deadline.
        """
        subscription = cls(connection, channel)
        try:
            await connection.connect()
            await connection.send_command("SSUBSCRIBE", channel)
            await connection.read_response()
        except BaseException:
            await subscription.aclose()
            raise
        return subscription

    async def read(self) -> bytes:
        """The next message. Raises RedisError when the connection is lost, or the channel has moved to another node.

        The caller sets the deadline; a read that was cut off by it may have lost a part of a message, so close then.
        """
        while True:
            kind, _, payload = await self._connection.read_response()
            if kind == b"smessage" and isinstance(payload, bytes):
                return payload
            if kind == b"sunsubscribe":
                raise ConnectionError(f"the channel {self.channel} has moved to another node")

    async def aclose(self) -> None:
        """Close without waiting for the other side."""
        await self._connection.disconnect(nowait=True)
