"""Who may publish as a worker: leases on worker ids and addresses, in Redis, so that all indexers agree.

Gateways join what a worker says to a pod by worker_id or address, so that both are leased, by pool. The holder is an
instance: a process that drew a secret at its start and shows it in every Hello. While a stream of it lives nobody else
gets either; LEASE_SECONDS after the last one has ended everybody may. In between only the same instance may, and who
comes from the same host: a worker that was started again in its place. Ranks and agents of one process are one
instance. Of several processes that share the token alone the first wins, until its end.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, cast

from redis.exceptions import RedisError

from indexer.layout import lease_key
from indexer.server.metrics import IndexerMetrics
from warmroute.redis.client import Client

SCRIPT: Final = files("indexer.server").joinpath("leases.lua").read_text(encoding="utf-8")
# As long as a silent stream lives (`session.SILENCE_SECONDS`); heartbeats renew it every second.
LEASE_SECONDS: Final = 15.0
KEPT_A_CALL: Final = 256
LEAVE_SECONDS: Final = 1.0
MOST_LEFT: Final = 4096
"""Ended streams that Redis is yet to be told of; what is past that runs out by itself."""
# All ranks of an engine are one holder: gateways take them for one place.
_RANK: Final = re.compile(r"/dp[0-9]{1,4}\Z")


class HeldError(Exception):
    """Another live worker holds `field` of this Hello."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


@dataclass(frozen=True, slots=True)
class Lease:
    """What one stream holds: the fields of its Hello with the key of each, and as whom. `peer`: the host it comes from.
    `token`: the stream's."""

    pool: str
    keys: dict[str, str]
    digest: str
    peer: str
    token: str


def lease_of(pool: str, worker_id: str, address: str, *, instance: bytes, peer: str, token: str) -> Lease:
    """`peer` as grpc writes it. Workers of former releases have no instance: they are all one."""
    names = {"worker_id": _RANK.sub("", worker_id), "address": address}
    keys = {field: lease_key(pool, field, name) for field, name in names.items() if name}
    digest = hashlib.sha256(instance).hexdigest()[:32] if instance else ""
    return Lease(pool, keys, digest, peer.rpartition(":")[0], token)


class Leases:
    """The leases of all pools, bounded by the streams of LEASE_SECONDS: they expire.

    `take` and `keep` raise RedisError. `run` is a task that its owner watches.
    """

    def __init__(self, redis: Client, heartbeats: Client, metrics: IndexerMetrics) -> None:
        self._script = redis.register_script(SCRIPT)
        self._heartbeats = heartbeats
        self._metrics = metrics
        self._left: deque[Lease] = deque(maxlen=MOST_LEFT)
        self._wake = asyncio.Event()

    async def take(self, lease: Lease) -> None:
        """Raises HeldError."""
        keys = list(lease.keys.values())
        status, *rest = await self._call("take", keys, lease.digest, lease.peer, lease.token)
        if status == b"held":
            raise HeldError(list(lease.keys)[int(rest[0]) - 1])

    async def keep(self, leases: Sequence[Lease]) -> list[int]:
        """Renew leases of one pool; returns the positions of those that others have by now."""
        lost: list[int] = []
        for first in range(0, len(leases), KEPT_A_CALL):
            some = leases[first : first + KEPT_A_CALL]
            keys = [key for lease in some for key in lease.keys.values()]
            arguments = [text for each in some for text in (len(each.keys), each.digest, each.peer, each.token)]
            _, *positions = await self._call("keep", keys, *arguments, client=self._heartbeats)
            lost += [first + int(position) for position in positions]
        return lost

    def leave(self, lease: Lease) -> None:
        """The stream has ended: whoever is started again in the worker's place need not wait."""
        self._left.append(lease)
        self._wake.set()

    async def run(self) -> None:
        """Tell Redis of streams that have ended, until cancelled. What is not told runs out by itself."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._left:
                try:
                    async with asyncio.timeout(LEAVE_SECONDS):
                        await self.give_back(self._left.popleft())
                except (RedisError, TimeoutError):
                    self._metrics.ledger_errors.labels("lease").inc()

    async def give_back(self, lease: Lease) -> None:
        await self._call("leave", list(lease.keys.values()), lease.token)

    async def _call(
        self, operation: str, keys: list[str], *arguments: str | int, client: Client | None = None
    ) -> list[bytes]:
        with self._metrics.ledger_seconds.labels(f"lease_{operation}").time():
            reply = await self._script(
                keys=keys, args=[operation, int(LEASE_SECONDS * 1000), *arguments], client=client
            )
        if not reply or reply[0] not in {b"ok", b"held"}:
            raise RedisError(f"the script of leases answered {reply!r}")
        return cast(list[bytes], reply)
