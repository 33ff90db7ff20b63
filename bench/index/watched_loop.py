"""An event loop that tells how long its work goes on without a break.

A *slice* is one step of one of the index's tasks: from where it is resumed to its next wait. A *turn* is all that the
loop runs between two waits for I/O, which is how long a request of a gateway may wait; several tasks can have a slice
in one turn.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from array import array
from collections.abc import Coroutine, Generator
from contextvars import Context
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class Slices:
    """Milliseconds of one phase's slices and turns: CPU time of this thread, and wall time, which counts neighbours.

    `longest_in`: the coroutine whose slice was the longest.
    """

    count: int
    longest_ms: float
    longest_in: str
    p999_ms: float
    turn_longest_ms: float
    turn_p999_ms: float
    turn_wall_longest_ms: float


class Watch:
    """What the loop saw since `take`: CPU seconds of every slice and turn. Grows by 24 bytes a turn until taken."""

    def __init__(self) -> None:
        self.slices = array("d")
        self.turns = array("d")
        self.turns_wall = array("d")
        self.longest = (0.0, "")

    @property
    def cpu_seconds(self) -> float:
        return sum(self.turns)

    def note_slice(self, seconds: float, name: str) -> None:
        self.slices.append(seconds)
        if seconds > self.longest[0]:
            self.longest = (seconds, name)

    def take(self) -> Slices:
        """Sum up and forget."""
        slices, turns = sorted(self.slices), sorted(self.turns)
        summary = Slices(
            len(slices),
            self.longest[0] * 1e3,
            self.longest[1],
            _part(slices, 0.999) * 1e3,
            _part(turns, 1.0) * 1e3,
            _part(turns, 0.999) * 1e3,
            max(self.turns_wall, default=0.0) * 1e3,
        )
        self.__init__()  # type: ignore[misc]
        return summary


def _part(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class WatchedLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop; uvloop's selector cannot be watched."""

    def __init__(self) -> None:
        self.watch = Watch()
        super().__init__(_Selector(self.watch))
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        # Only the product's own coroutines: those of the bench and of libraries beside them are no slices of it.
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and frame.f_globals["__name__"].startswith("indexer."):
            coroutine = _Steps(coroutine, frame.f_code.co_qualname, self.watch)
        return asyncio.Task(coroutine, loop=loop, context=context)


class _Selector(selectors.DefaultSelector):
    """Times what runs from each return of `select` to its next call."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._cpu_at, self._wall_at = time.thread_time(), time.perf_counter()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._watch.turns.append(time.thread_time() - self._cpu_at)
        self._watch.turns_wall.append(time.perf_counter() - self._wall_at)
        ready = super().select(timeout)
        self._cpu_at, self._wall_at = time.thread_time(), time.perf_counter()
        return ready


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine that times each of its steps."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str, watch: Watch) -> None:
        self._coroutine = coroutine
        self._name = name
        self._watch = watch

    def send(self, value: Any) -> Any:
        start = time.thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            self._watch.note_slice(time.thread_time() - start, self._name)

    def throw(self, kind: Any, value: BaseException | object | None = None, trace: TracebackType | None = None) -> Any:
        return self._coroutine.throw(kind, value, trace)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()
