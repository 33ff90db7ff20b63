"""The owners of stored responses in Redis, so that any gateway, and any process of one, finds the worker that has one.

What a gateway learns is written behind the reply's back, by one task; what it does not know is looked up with a
deadline. Without Redis each gateway knows its own, as it always does, and what is lost is counted. Redis holds names
of pools, workers, tenants and models under the digests of ids: nothing of what was said.

Bounds: an owner is dropped a day after it was made or last looked up, and earlier where its bucket is full, the least
recently used first. So Redis holds at most `BUCKETS * OWNERS_A_BUCKET` of them, 262,144, in about 60 MB.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

import orjson
from redis.exceptions import RedisError

from gateway.requests.metrics import RequestMetrics
from gateway.requests.stored_responses import Owner, StoredResponses
from warmroute.process.log_limit import LogLimit
from warmroute.redis.client import Client

logger = logging.getLogger(__name__)

SCRIPT: Final = files("gateway.requests").joinpath("owners.lua").read_text(encoding="utf-8")
BUCKETS: Final = 1024
OWNERS_A_BUCKET: Final = 256
LIFE_SECONDS: Final = 86_400
FIND_SECONDS: Final = 0.05
"""Longest wait of a request for Redis."""
WRITES_LIMIT: Final = 1000
"""Most changes that wait to be written; more are dropped and counted."""
WRITES_AT_ONCE: Final = 8
"""Calls in flight: one after another would be a few hundred a second to a server that is a ms away. The client's other
connections are left to those who wait."""
ID_LIMIT: Final = 128
"""Characters of an id; longer ones are no engine's."""


class _Write(NamedTuple):
    operation: Literal["learn", "forget"]
    response_id: str
    owner: Owner | None


class SharedResponses:
    """Beside one gateway's `StoredResponses`, which it fills. `run` writes; its owner watches it."""

    def __init__(self, redis: Client | None, metrics: RequestMetrics, local: StoredResponses) -> None:
        """`redis`: not the index reader's, since calls that hang hold connections; None: nothing is shared."""
        self._script = None if redis is None else redis.register_script(SCRIPT)
        self._calls = metrics.stored_response_calls
        self.local = local
        self._writes: asyncio.Queue[_Write] = asyncio.Queue(WRITES_LIMIT)
        self._log_limit = LogLimit()

    async def owner(self, response_id: str) -> Owner | None:
        """Who has a stored response; None where nobody knows."""
        owner = self.local.owner(response_id)
        return owner if owner is not None or self._script is None else await self.find(response_id)

    async def find(self, response_id: str) -> Owner | None:
        """The owner that another gateway has learned; None where there is none, or Redis does not say in time."""
        if len(response_id) > ID_LIMIT:
            return None
        try:
            async with asyncio.timeout(FIND_SECONDS):
                reply = await self._call("find", response_id)
        except (RedisError, TimeoutError) as error:
            self._calls.labels("find", "failed").inc()
            self._complain(error)
            return None
        owner = _decode(reply)
        self._calls.labels("find", "missing" if owner is None else "done").inc()
        if owner is not None:
            self.local.learn(response_id, owner)
        return owner

    def learn(self, response_id: str, owner: Owner, *, chosen: bool = False) -> None:
        """Note where a response is, here and, as soon as it can be written, for all. `chosen`: the client named the id,
        so that it may be another tenant's: it counts here once Redis has said that it is not."""
        if self._script is None or not chosen:
            self.local.learn(response_id, owner)
        if not self._put(_Write("learn", response_id, owner)):
            self.local.learn(response_id, owner)

    def forget(self, response_id: str) -> None:
        """The response was deleted."""
        self.local.forget(response_id)
        self._put(_Write("forget", response_id, None))

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What writes; none where nothing is shared."""
        return [] if self._script is None else [self.run()]

    def _put(self, write: _Write) -> bool:
        if self._script is None:
            return True
        try:
            self._writes.put_nowait(write)
        except asyncio.QueueFull:
            self._calls.labels(write.operation, "dropped").inc()
            return False
        return True

    async def run(self) -> None:
        """Write what is learned, in order for each id, until cancelled."""
        following: _Write | None = None
        while True:
            write = following or await self._writes.get()
            following = None
            batch = {write.response_id: write}
            while len(batch) < WRITES_AT_ONCE and not self._writes.empty():
                following = self._writes.get_nowait()
                if following.response_id in batch:
                    break
                batch[following.response_id] = following
                following = None
            async with asyncio.TaskGroup() as group:
                for write in batch.values():
                    group.create_task(self._write(write))

    async def _write(self, write: _Write) -> None:
        outcome = "done"
        try:
            reply = await self._call(write.operation, write.response_id, write.owner)
        except RedisError as error:
            self._complain(error)
            outcome, reply = "failed", None
        if write.owner is None:
            self.local.forget(write.response_id)  # what a write before it, of the same id, has learned meanwhile
        else:
            if (other := _decode(reply)) is not None:
                # Learned here before it was known that the id is taken.
                outcome = "foreign"
                self.local.forget(write.response_id)
            self.local.learn(write.response_id, other or write.owner)
        self._calls.labels(write.operation, outcome).inc()

    async def _call(self, operation: str, response_id: str, owner: Owner | None = None) -> object:
        digest = sha256(response_id.encode("utf-8", "surrogatepass")).digest()[:16]
        bucket = int.from_bytes(digest[:2]) % BUCKETS
        keys = [f"wr-response:{{{bucket}}}:owners", f"wr-response:{{{bucket}}}:used"]
        arguments: list[str | bytes | int] = [operation, digest, LIFE_SECONDS, OWNERS_A_BUCKET]
        if owner is not None:
            arguments += [owner.tenant, orjson.dumps([owner.tenant, owner.pool, owner.worker, owner.model])]
        if self._script is None:
            return None
        return await self._script(keys, arguments)

    def _complain(self, error: Exception) -> None:
        left_out = self._log_limit.take("redis", time.monotonic())
        if left_out is not None:
            logger.warning("stored responses are known to this gateway alone: Redis: %s", str(error) or "too slow")


def _decode(reply: object) -> Owner | None:
    """What the script returned; None also for a value of another format, of a release to come."""
    if not isinstance(reply, bytes):
        return None
    try:
        tenant, pool, worker, model = map(str, orjson.loads(reply))
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return None
    return Owner(pool, worker, tenant, model)
