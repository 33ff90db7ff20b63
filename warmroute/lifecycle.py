"""How a part runs as a process: until a signal, with its tasks watched, and with errors a person can act on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any


class StartupError(Exception):
    """A part cannot start; the message names the setting, its value and the remedy."""


def cannot_listen(setting: str, host: str, port: int, error: OSError) -> StartupError:
    return StartupError(
        f"{setting}: cannot listen on {host}:{port}: {error.strerror or error}. "
        "Stop what listens there or choose another port"
    )


async def until_signal(
    *tasks: Coroutine[Any, Any, Any], before_end: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run background tasks until SIGINT or SIGTERM, or until one of them ends.

    On a signal `before_end` runs while the tasks still do; a second signal cuts it short. A task that raises raises
    here; one that returns ends the wait too. All are cancelled and awaited at the end.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    running: list[asyncio.Future[Any]] = [loop.create_task(task) for task in (stop.wait(), *tasks)]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if before_end is not None and stop.is_set():
            stop.clear()
            ending = asyncio.ensure_future(before_end())
            running += [ending, loop.create_task(stop.wait())]
            await asyncio.wait(running[-2:], return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                ending.result()
    finally:
        for task in running:
            task.cancel()
        for task in running:
            with suppress(asyncio.CancelledError):
                await task
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
