"""What our clients add to the commands of redis-py's: a deadline, scripts by digest, subscriptions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from warmroute.redis.subscription import Subscription


class Calls:
    """Shared by the clients of one server and of a cluster; see `warmroute.redis.client.Client`."""

    deadline_seconds = 5.0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def open_subscription(self, channel: str) -> Subscription:
        """The caller sets the deadline and closes it."""
        raise NotImplementedError

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Raises redis.exceptions.TimeoutError.

        redis-py's own `socket_timeout` is not used: it goes through `asyncio.wait_for`, which up to Python 3.11
        swallows a cancellation that arrives while a write completes, and a task that cannot be cancelled cannot be
        ended. Nor does it count the wait for a connection.
        """
        try:
            async with asyncio.timeout(self.deadline_seconds):
                yield
        except TimeoutError as error:
            raise RedisTimeoutError(f"Redis did not answer within {self.deadline_seconds} s") from error

    @asynccontextmanager
    async def subscription(self, channel: str) -> AsyncIterator[Subscription]:
        async with self.deadline():
            subscription = await self.open_subscription(channel)
        try:
            yield subscription
        finally:
            await subscription.aclose()

    async def hello(self) -> dict[str, Any]:
        return named_values(await self.execute_command("HELLO", 2))

    def register_script(self, script: str | bytes) -> Script:
        return Script(self, script)


class Script:
    """Calls by digest, and with the text where a server does not know it: one that was restarted or failed over.

    redis-py loads the script first, which needs another permission and, in a cluster, may reach another node.
    """

    def __init__(self, client: Calls, script: str | bytes) -> None:
        self._client = client
        self._script = script
        text = script.encode() if isinstance(script, str) else script
        # What Redis calls scripts by; nothing is secured by it.
        self._digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()

    async def __call__(self, keys: Sequence[Any] = (), args: Iterable[Any] = (), client: Any = None) -> Any:
        """Runs on another client than that of `register_script` when one is given."""
        client = client or self._client
        arguments = (len(keys), *keys, *args)
        try:
            return await client.execute_command("EVALSHA", self._digest, *arguments)
        except NoScriptError:
            return await client.execute_command("EVAL", self._script, *arguments)


def named_values(reply: Sequence[Any]) -> dict[str, Any]:
    """The reply of HELLO 2: names and values in turn."""
    values = (value.decode() if isinstance(value, bytes) else value for value in reply[1::2])
    return dict(zip((name.decode() for name in reply[::2]), values, strict=True))
