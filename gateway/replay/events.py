"""The simulation's time: events in order, each at its moment."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class Events:
    """A queue of calls; `now` is the simulated time in seconds. Calls of one moment run in the order they were made."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have `call(*arguments)` run at `time`, or next where that is past."""
        heapq.heappush(self._heap, (time, next(self._numbers), call, arguments))

    def step(self) -> bool:
        """Run the next call; False where none is left."""
        if not self._heap:
            return False
        time, _, call, arguments = heapq.heappop(self._heap)
        self.now = max(self.now, time)
        call(*arguments)
        return True
