"""The newest load of every worker that publishes to this replica, and the gateways that listen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from warmroute.v1 import index_pb2 as pb

WorkerKey = tuple[str, str]
"""(pool, worker_id)"""


@dataclass(slots=True)
class Subscription:
    """What one gateway has not been told yet; bounded by the number of workers."""

    pools: frozenset[str]
    changed: set[WorkerKey] = field(default_factory=set)
    gone: set[WorkerKey] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def wants(self, worker: WorkerKey) -> bool:
        return not self.pools or worker[0] in self.pools


class LoadTable:
    """Bounded by the open streams of workers: an entry lives as long as its stream."""

    def __init__(self) -> None:
        self._loads: dict[WorkerKey, tuple[pb.Load, object, float]] = {}
        self._subscriptions: list[Subscription] = []

    def update(self, worker: WorkerKey, load: pb.Load, stream: object, now: float) -> None:
        """Note a report of a stream; `now` in seconds of any steady clock, the same for `take`."""
        self._loads[worker] = (load, stream, now)
        for subscription in self._subscriptions:
            if subscription.wants(worker):
                subscription.changed.add(worker)
                subscription.gone.discard(worker)
                subscription.wake.set()

    def get(self, worker: WorkerKey, stream: object) -> tuple[pb.Load, float] | None:
        """What this stream reported last, and when."""
        known = self._loads.get(worker)
        return (known[0], known[2]) if known is not None and known[1] is stream else None

    def remove(self, worker: WorkerKey, stream: object, *, handed_over: bool = False) -> None:
        """A stream ended: its worker is gone, unless a newer stream of it reports already.

        `handed_over`: it was sent to another replica, which reports it in a moment; gateways keep what they know.
        """
        known = self._loads.get(worker)
        if known is None or known[1] is not stream:
            return
        del self._loads[worker]
        for subscription in self._subscriptions:
            if subscription.wants(worker):
                subscription.changed.discard(worker)
                if not handed_over:
                    subscription.gone.add(worker)
                    subscription.wake.set()

    @contextmanager
    def subscribe(self, pools: frozenset[str]) -> Iterator[Subscription]:
        """A subscription that starts with every known worker."""
        subscription = Subscription(pools)
        subscription.changed = {worker for worker in self._loads if subscription.wants(worker)}
        subscription.wake.set()
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    def take(self, subscription: Subscription, now: float) -> pb.LoadsResponse:
        """Everything the gateway has not been told, as one message; empty when there is nothing."""
        response = pb.LoadsResponse()
        for worker in subscription.changed:
            load, _, received_at = self._loads[worker]
            response.loads.add(
                pool=worker[0], worker_id=worker[1], load=load, age_ms=max(0, int((now - received_at) * 1000))
            )
        for pool, worker_id in subscription.gone:
            response.gone.add(pool=pool, worker_id=worker_id)
        subscription.changed.clear()
        subscription.gone.clear()
        subscription.wake.clear()
        return response
