"""Backpressure of one client connection: who waits, and what pauses, while the client's socket is full."""

from __future__ import annotations

import asyncio
from typing import Protocol


class PausableReader(Protocol):
    """A connection to a worker, whose bytes go to the client."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class FlowControl:
    """The transport calls `pause` above the high mark of its write buffer, and `resume` below the low mark."""

    __slots__ = ("_source", "_waiters", "paused")

    def __init__(self) -> None:
        self.paused = False
        self._source: PausableReader | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def attach(self, source: PausableReader) -> None:
        """From now on `source` pauses while the client's socket is full. One at a time."""
        self._source = source
        if self.paused:
            source.pause_reading()

    def detach(self) -> None:
        """Forget the source, without resuming it."""
        self._source = None

    def pause(self) -> None:
        self.paused = True
        if self._source is not None:
            self._source.pause_reading()

    def resume(self) -> None:
        self.paused = False
        if self._source is not None:
            self._source.resume_reading()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def drain(self) -> None:
        """Wait until the socket takes more, or the connection is gone. The connection's deadline bounds the wait."""
        if self.paused:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
