"""Find workers by watching pods.

One loop: list, then watch from the list's version until the watch ends for whatever reason, then list again. There is
no resuming from the last event: the list after every break is what heals an event that was lost, and its price is one
small query every few minutes. The last known set stays in use while the API server is away.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from gateway.discovery.podapi import ApiUnavailableError, HistoryExpiredError, connect
from gateway.discovery.pods import PodSet
from gateway.routing.census.targets import OnTargets
from warmroute.config.pool import KubernetesDiscoveryConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """Deadlines and waits of discovery, in seconds."""

    list_seconds: float = 30.0
    """Deadline of a list."""
    watch_seconds: int = 300
    """Life of a watch, +/- 20 % so that gateways do not list together; bounds how long a lost event can matter."""
    quiet_seconds: float = 90.0
    """Silence after which a watch counts as dead. API servers send a bookmark about once a minute, unless nothing at
    all has changed: then one list in this time is the price."""
    retry_seconds: float = 0.5
    """Longest first wait after a break; doubles with each break that follows."""
    retry_limit_seconds: float = 30.0
    """Longest wait after a break."""
    steady_seconds: float = 30.0
    """A watch that lasted this long was sound: the waits start small again."""


class KubernetesDiscovery:
    """Reports the pods that match a selector, and only those that requests may go to, to `on_targets`.

    The owner runs `run()` as a task and cancels it to stop. Only a failing `on_targets` ends it otherwise.
    """

    def __init__(self, config: KubernetesDiscoveryConfig, on_targets: OnTargets, pace: Pace | None = None) -> None:
        self._config = config
        self._on_targets = on_targets
        self._pace = pace or Pace()
        self._pods = PodSet(config.port)
        self._synced = False
        self._watching = False

    @property
    def synced(self) -> bool:
        """Whether a complete list has been read since the start. Stays true while the API server is away."""
        return self._synced

    @property
    def watching(self) -> bool:
        """Whether changes are being followed now; false while the last known set is all there is."""
        return self._watching

    async def run(self) -> None:
        """Keep the set current until cancelled, whatever the API server does."""
        clock = asyncio.get_running_loop().time
        breaks = 0
        while True:
            started = clock()
            try:
                await self._list_and_watch()
            except HistoryExpiredError as error:
                log.info("Kubernetes watch of %s expired: %s", self._config.selector, error)
            except ApiUnavailableError as error:
                # Once an outage, not once a try: an hour away is one line.
                level = logging.DEBUG if breaks and not self._watching else logging.WARNING
                known = len(self._pods.targets)
                log.log(level, "Kubernetes API: %s. The %d workers known last stay in use.", error, known)
            finally:
                watched, self._watching = self._watching, False
            if watched and clock() - started >= self._pace.steady_seconds:
                breaks = 0
            await asyncio.sleep(retry_wait(self._pace, breaks, random.random()))
            breaks += 1

    async def _list_and_watch(self) -> None:
        """One round. Returns when the server ends the watch, as it does every few minutes."""
        pace = self._pace
        # A client a round: it reads rotated credentials and CA files again, and no connection of the last round, which
        # may be half open, is used for the next.
        async with connect(self._config) as api:
            listing = await api.list(pace.list_seconds)
            changed = self._pods.replace(listing.pods)
            if changed or not self._synced:
                self._on_targets(self._pods.targets)
            self._synced = True
            watch_seconds = max(1, round(pace.watch_seconds * random.uniform(0.8, 1.2)))
            async with api.watch(listing.resource_version, watch_seconds, pace.quiet_seconds) as events:
                self._watching = True
                async for event in events:
                    # A bookmark carries no pod. It has done its work: something was heard.
                    if event.kind != "BOOKMARK" and self._pods.apply(event.kind, event.pod):
                        self._on_targets(self._pods.targets)


def retry_wait(pace: Pace, breaks: int, chance: float) -> float:
    """Seconds to wait after `breaks` earlier breaks; `chance` in [0, 1) spreads gateways over the whole wait.

    Source: exponential backoff with full jitter; 2 ** 16 bounds the power, not the wait.
    """
    return chance * min(pace.retry_limit_seconds, pace.retry_seconds * 2.0 ** min(breaks, 16))
