"""Sends bookings and predictions to the other gateways, over one sharded channel of Redis for each pool."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import quote

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from gateway.discovery.metrics import DiscoveryMetrics
from gateway.routing.state.peer_sync import PeerSync
from gateway.routing.state.peer_view import FORGET_SECONDS
from warmroute.redis.client import Client

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 1.0
"""Deadline of calls: a later message is out of date."""
SILENCE_SECONDS: Final = FORGET_SECONDS
"""A gateway hears itself every second: a connection that is silent for longer is half open, or to a former master."""
RETRY_SECONDS: Final = (0.05, 1.0)
LEAVE_SECONDS: Final = 0.5
BYTES_A_TURN: Final = 16_384
"""Bytes of messages that one turn of the loop handles: about a quarter of a millisecond of work."""
MESSAGE_BYTES: Final = 1024
"""Fixed cost of a message, in bytes, that is added to its length."""


def channel_name(pool: str) -> str:
    """The channel of a pool; its hash tag is the pool, percent-encoded as in the index's keys."""
    return f"wr:{{{quote(pool, safe='')}}}:flight"


def new_incarnation() -> int:
    """Unique, and larger after each restart: about milliseconds since 1970, then 20 random bits."""
    return (time.time_ns() >> 20) << 20 | secrets.randbits(20)


class PeerChannel:
    """Sends a pool's `PeerSync` messages and gives it those that come. `run` is the one task; its owner cancels it and
    notices its death. While Redis is away it tries again."""

    def __init__(
        self,
        redis: Client,
        pool: str,
        peers: PeerSync,
        metrics: DiscoveryMetrics,
        *,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`redis`: best a client of its own with a short deadline, for two connections a pool. `name`: this gateway's,
        unlike every other's, and the same after a restart."""
        self.channel = channel_name(pool)
        self._redis = redis
        self._pool = pool
        self._peers = peers
        self._clock = clock
        self._wanted = asyncio.Event()
        self._complained = False
        self._sent = metrics.flight_sent.labels(pool, "sent")
        self._failed = metrics.flight_sent.labels(pool, "failed")
        self._received = metrics.flight_received
        metrics.flight_shared.labels(pool).set_function(lambda: float(peers.shared(clock())))
        metrics.flight_gateways.labels(pool).set_function(lambda: float(peers.gateways))
        peers.start(name=name, incarnation=new_incarnation(), wake=self._wanted.set)

    async def run(self) -> None:
        """Exchange until cancelled; then tell the others that this gateway's requests are gone."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen())
                tasks.create_task(self._send())
        finally:
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._publish(self._peers.leaving(self._clock()))

    async def _send(self) -> None:
        delay = RETRY_SECONDS[0]
        while True:
            self._wanted.clear()
            packed = self._peers.outgoing(self._clock())
            if packed is None:
                await self._wait()
                continue
            try:
                self._peers.published(await self._publish(packed))
            except (RedisError, OSError) as error:
                self._peers.failed()
                self._failed.inc()
                self._complain(error)
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, RETRY_SECONDS[1])
            else:
                self._sent.inc()
                delay = RETRY_SECONDS[0]
                await asyncio.sleep(self._peers.pause)

    async def _wait(self) -> None:
        """Until there is something to send."""
        left = self._peers.next_at() - self._clock()
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._wanted.wait()

    async def _publish(self, packed: bytes) -> int:
        return int(await self._redis.execute_command("SPUBLISH", self.channel, packed))

    async def _listen(self) -> None:
        delay = RETRY_SECONDS[0]
        while True:
            try:
                async with self._redis.subscription(self.channel) as subscription:
                    self._peers.connected()
                    taken = 0
                    while True:
                        async with asyncio.timeout(SILENCE_SECONDS):
                            packed = await subscription.read()
                        self._take(packed)
                        delay = RETRY_SECONDS[0]
                        taken += MESSAGE_BYTES + len(packed)
                        if taken >= BYTES_A_TURN:
                            taken = 0
                            await asyncio.sleep(0)
            except (RedisError, OSError, TimeoutError) as error:
                self._complain(error)
            finally:
                self._peers.disconnected()
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, RETRY_SECONDS[1])

    def _take(self, packed: bytes) -> None:
        now, name = self._clock(), self._peers.name
        verdict = self._peers.receive(packed, now)
        self._received.labels(self._pool, verdict).inc()
        if self._peers.name != name:
            logger.warning("pool %s: another gateway has the name %s too; going by another", self._pool, name)
        if self._complained and self._peers.shared(now):
            self._complained = False
            logger.info("pool %s: the other gateways' requests in flight are known again", self._pool)

    def _complain(self, error: Exception) -> None:
        """Once an outage."""
        if self._complained:
            return
        self._complained = True
        remedy = ""
        if isinstance(error, NoPermissionError):
            remedy = "; give the gateway's user the rules of gateway_rules() in warmroute/redis/access.py"
        elif isinstance(error, ResponseError) and "unknown command" in str(error).lower():
            remedy = "; Redis 7 or newer is needed"
        logger.warning(
            "pool %s: the other gateways' requests in flight are not known, routing by own bookings and the workers' "
            "reports: %s%s",
            self._pool,
            str(error) or "no message came",
            remedy,
        )
