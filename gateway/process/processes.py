"""Several gateway processes on one public port: started, restarted when they die, drained, ended.

The kernel spreads new connections over the processes (SO_REUSEPORT). The parent carries no request: it supervises, and
serves the admin port (`gateway.process.processes_admin`). For routing each process is a replica of its own.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from gateway.process.processes_admin import ProcessesAdmin
from warmroute.config.gateway import GatewayConfig
from warmroute.process.bearer_tokens import Tokens
from warmroute.process.lifecycle import StartupError, cannot_listen, until_signal

logger = logging.getLogger(__name__)

RESTART_SECONDS: Final = (0.5, 30.0)
"""First and longest wait before a process is started again; doubled each time it dies young."""
YOUNG_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
DRAIN_MARGIN_SECONDS: Final = 30.0
CANNOT_START: Final = 2
"""Exit code of a process that is configured wrongly: to start it again would not help."""

Entry = Callable[[int, Path], None]
"""Runs one process: its number and the socket of its admin server. Pickled, so a function of a module, or a partial."""


async def supervise(config: GatewayConfig, entry: Entry) -> None:
    """Run config.processes of them until SIGINT or SIGTERM, then drain. Raises StartupError."""
    with tempfile.TemporaryDirectory(prefix="warmroute-") as folder:
        processes = Processes(entry, config.processes, Path(folder))
        sockets = [processes.socket(number) for number in range(config.processes)]
        tokens = Tokens("gateway.admin_token", config.admin_token, config.admin_token_file)
        admin = ProcessesAdmin(sockets, body_limit_bytes=config.body_limit_bytes, tokens=tokens)
        drain = partial(processes.drain, config.unready_seconds + config.drain_seconds)
        try:
            try:
                await admin.start(config.admin_host, config.admin_port)
            except OSError as error:
                raise cannot_listen("gateway.admin_port", config.admin_host, config.admin_port, error) from error
            await until_signal(processes.run(), before_end=drain)
        finally:
            await processes.stop()
            await admin.stop()


class Processes:
    """The supervisor. `run` it in the main thread, as a task that its owner watches; then `drain`, then `stop`."""

    def __init__(self, entry: Entry, count: int, folder: Path) -> None:
        """`folder` is this user's alone: the processes' admin sockets lie there."""
        self._entry = entry
        self._folder = folder
        self._running: dict[int, BaseProcess] = {}
        self._stop = asyncio.Event()
        self.count = count

    def socket(self, number: int) -> Path:
        return self._folder / f"{number}.sock"

    async def run(self) -> None:
        """Start them and keep them running. Raises StartupError when one cannot start the first time."""
        tasks = [asyncio.create_task(self._keep(number)) for number in range(self.count)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Tell all to end, and wait until they have: each drains for up to `seconds`."""
        self._terminate()
        await self._ended(seconds + DRAIN_MARGIN_SECONDS)

    async def stop(self) -> None:
        """End what still runs: a second signal cuts a drain short; what does not heed it is killed."""
        self._terminate()
        if not await self._ended(STOP_SECONDS):
            for number, process in self._running.items():
                logger.warning("process %d does not end and is killed", number)
                process.kill()
            await self._ended(STOP_SECONDS)

    async def _keep(self, number: int) -> None:
        wait, longest = RESTART_SECONDS
        first = True
        while not self._stop.is_set():
            born = time.monotonic()
            code = await self._live(number)
            if self._stop.is_set():
                break
            if first and code == CANNOT_START:
                raise StartupError(f"gateway.processes: process {number} cannot start; its message stands above")
            first = False
            if time.monotonic() - born > YOUNG_SECONDS:
                wait = RESTART_SECONDS[0]
            logger.error("process %d ended with %s; it is started again in %g s", number, code, wait)
            await asyncio.sleep(wait)
            wait = min(longest, 2 * wait)
        await asyncio.Event().wait()  # the owner cancels

    async def _live(self, number: int) -> int | None:
        """Start the process and wait for its end; returns its exit code, negative for a signal."""
        socket = self.socket(number)
        socket.unlink(missing_ok=True)
        # Spawned, not forked: no threads, locks or descriptors of this process come along.
        process = multiprocessing.get_context("spawn").Process(
            target=self._entry, args=(number, socket), name=f"gateway {number}", daemon=True
        )
        process.start()
        self._running[number] = process  # stays there when this is cancelled: `stop` waits for it
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(process.sentinel)
        process.join()
        del self._running[number]
        return process.exitcode

    def _terminate(self) -> None:
        self._stop.set()
        for process in self._running.values():
            process.terminate()

    async def _ended(self, within: float) -> bool:
        ends_at = time.monotonic() + within
        while any(process.is_alive() for process in self._running.values()):
            if time.monotonic() > ends_at:
                return False
            await asyncio.sleep(0.05)
        return True
