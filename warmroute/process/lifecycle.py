"""How a part runs as a process: until a signal, with its tasks watched, and with errors a person can act on."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from warmroute.process.addresses import address


class StartupError(Exception):
    """A part cannot start; the message names the setting, its value and the remedy."""


def cannot_listen(setting: str, host: str, port: int, error: OSError) -> StartupError:
    return StartupError(
        f"{setting}: cannot listen on {address(host, port)}: {error.strerror or error}. "
        "Stop what listens there or choose another port"
    )


def freeze_garbage() -> None:
    """Tell the collector that what there is stays: each full collection would walk what the start made, for 40 ms."""
    gc.collect()
    gc.freeze()


async def until_signal(
    *tasks: Coroutine[Any, Any, Any], before_end: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run background tasks until SIGINT or SIGTERM, or until one of them ends.

    On a signal `before_end` runs while the tasks still do; a second signal, or a task that ends, cuts it short. A task
    that raises raises here; one that returns ends the wait too. All are cancelled and awaited at the end.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    work: list[asyncio.Future[Any]] = [loop.create_task(task) for task in tasks]
    waits: list[asyncio.Future[Any]] = [loop.create_task(stop.wait())]
    try:
        await _first_to_end([*work, *waits])
        if before_end is not None and stop.is_set():
            stop.clear()
            waits += [asyncio.ensure_future(before_end()), loop.create_task(stop.wait())]
            await _first_to_end([*work, *waits[1:]])
    finally:
        for task in (*work, *waits):
            task.cancel()
        # What the others raise while they are cancelled must not hide why the first one ended.
        await asyncio.gather(*work, *waits, return_exceptions=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _first_to_end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Wait until one ends, and raise what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
