"""The watched loop: a busy step shows, waiting does not."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Awaitable, Callable

from bench.index.watched_loop import Slices, WatchedLoop

BUSY_SECONDS = 0.02


def burn() -> None:
    until = time.thread_time() + BUSY_SECONDS
    while time.thread_time() < until:
        pass


async def busy_twice() -> None:
    burn()
    await asyncio.sleep(0.05)
    burn()


def as_if_of(module: str, function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """The same function with another module's globals."""
    return types.FunctionType(function.__code__, {**function.__globals__, "__name__": module}, "busy")


def slices_of(module: str) -> Slices:
    async def main(loop: WatchedLoop) -> Slices:
        loop.watch.take()
        await asyncio.ensure_future(as_if_of(module, busy_twice)())
        await asyncio.sleep(0)
        return loop.watch.take()

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, WatchedLoop)
        return runner.run(main(loop))


def test_steps_of_the_index_are_slices() -> None:
    slices = slices_of("indexer.somewhere")
    assert slices.count == 2
    assert slices.longest_in == "busy_twice"
    assert BUSY_SECONDS * 1e3 <= slices.longest_ms < 2 * BUSY_SECONDS * 1e3
    assert slices.turn_longest_ms >= slices.longest_ms


def test_steps_of_others_count_in_turns_only() -> None:
    slices = slices_of("elsewhere")
    assert slices.count == 0
    assert slices.turn_longest_ms >= BUSY_SECONDS * 1e3
    assert slices.turn_wall_longest_ms >= BUSY_SECONDS * 1e3
