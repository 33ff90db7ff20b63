"""A bound on the bytes of messages that are worked on at once, over all streams.

A message of keys grows many times over while it is checked and written: Python integers, arguments, a packed command.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class InflightGate:
    """Lets messages in by turn, first come, first served, so that a large one cannot starve.

    Bounded by the open streams, each of which waits with one message at most.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Be inside with a message of so many bytes. One that is larger than the limit goes in alone."""
        size = min(size, self._limit)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._held -= size
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if self._held + size > self._limit:
                    return
                self._held += size
                turn.set_result(None)
            self._waiting.popleft()
