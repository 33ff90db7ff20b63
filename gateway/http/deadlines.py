"""A set of open connections with deadlines, checked by one coarse timer rather than by a timer each."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

NEVER = math.inf
TICK_SECONDS = 0.25
"""Deadlines are kept to within this."""


class Watched(Protocol):
    """A connection that a watch can expire."""

    deadline: float
    """Loop time; `NEVER` for none."""

    def expire(self) -> None:
        """The deadline has passed: act on it and move or lift it."""
        ...


T = TypeVar("T", bound=Watched)


class DeadlineWatcher(Generic[T]):
    """Owns open connections. Its timer runs while there are any."""

    def __init__(self, tick_seconds: float = TICK_SECONDS) -> None:
        self._members: set[T] = set()
        self._tick_seconds = tick_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[T]:
        """A snapshot, so that members may leave meanwhile."""
        return iter(tuple(self._members))

    def add(self, member: T) -> None:
        self._members.add(member)
        self._empty.clear()
        if self._timer is None:
            self._schedule(asyncio.get_running_loop())

    def discard(self, member: T) -> None:
        self._members.discard(member)
        if not self._members:
            self._empty.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def emptied(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until no member is left; False when some are."""
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._tick_seconds, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._schedule(loop)  # first, so that a member that fails to expire cannot stop the timer
        now = loop.time()
        for member in [member for member in self._members if member.deadline <= now]:
            member.expire()
