"""One run at a time of something that several may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class SharedTask:
    """A caller that gives up waiting ends the run for nobody else."""

    def __init__(self, run: Callable[[], Awaitable[Any]]) -> None:
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The run in progress, or a new one."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._body())
            # Nobody may be left to take a failure.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def finished(self) -> None:
        """Raises what the run raised."""
        await asyncio.shield(self.start())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _body(self) -> None:
        await self._run()
