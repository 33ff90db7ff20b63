"""A line of JSON a request, written in batches by a thread: nothing of it waits for a disk.

A line holds no header but the request id, no query, no body: neither keys nor prompts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

import orjson

from gateway.entrypoint.http import Request
from gateway.entrypoint.reply import Reply

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.5
PENDING_LIMIT: Final = 20_000
"""Most lines that wait to be written; more are dropped and counted."""
PATH_LIMIT: Final = 256
STOP_SECONDS: Final = 2.0
"""How long the last lines may take: a pipe that nobody reads must not hold up the end."""


class Entry(NamedTuple):
    """What a line says. `seconds`, to the millisecond, runs from the request's last byte to the reply's end; `worker`
    is empty where none was asked."""

    time: float
    request_id: str
    client: str
    method: str
    path: str
    status: int
    worker: str
    seconds: float


class AccessLog:
    """Takes entries on the loop's thread; a task of the loop hands them to a thread, one batch at a time."""

    def __init__(self, target: Literal["json"] | Path, on_drop: Callable[[int], None] | None = None) -> None:
        """`json` writes to standard output. A file is opened for each batch, so that it may be rotated. `on_drop` is
        told how many lines were lost, since too many waited or they could not be written."""
        self._target = target
        self._on_drop = on_drop
        self._pending: list[Entry] = []
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self._writing = asyncio.Lock()

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, request: Request, reply: Reply, seconds: float) -> None:
        """Note an answered request."""
        if len(self._pending) >= PENDING_LIMIT:
            self._drop(1)
            return
        self._pending.append(
            Entry(
                time.time(),
                request.request_id,
                request.client,
                request.method,
                request.path[:PATH_LIMIT],
                reply.final_status,
                reply.worker,
                seconds,
            )
        )

    async def stop(self) -> None:
        """Write what is left, as far as that is done within `STOP_SECONDS`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._flush()
        except TimeoutError:
            self._drop(len(self._pending))
            logger.error("gateway.access_log: the last lines are lost: nobody takes them")  # noqa: TRY400

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            # Shielded: a batch that was begun is written to its end.
            await asyncio.shield(self._flush())

    async def _flush(self) -> None:
        async with self._writing:
            entries, self._pending = self._pending, []
            if not entries:
                return
            try:
                await _in_thread(partial(self._write, entries))
                self._failing = False
            except asyncio.CancelledError:
                self._drop(len(entries))
                raise
            except (OSError, ValueError, RuntimeError) as error:  # also: a closed standard output, no thread to be had
                self._drop(len(entries))
                if not self._failing:  # once, not twice a second
                    self._failing = True
                    logger.error("gateway.access_log: lines are lost: %s", error)  # noqa: TRY400

    def _write(self, entries: list[Entry]) -> None:
        lines = [
            # Paths are latin-1 and ids ASCII: always valid UTF-8.
            orjson.dumps({**entry._asdict(), "seconds": round(entry.seconds, 3)}, option=orjson.OPT_APPEND_NEWLINE)
            for entry in entries
        ]
        if self._target == "json":
            for piece in _pieces(lines):
                _write_all(sys.stdout.fileno(), piece)
        else:
            with self._target.open("ab") as file:
                file.write(b"".join(lines))

    def _drop(self, lines: int) -> None:
        if self._on_drop is not None:
            self._on_drop(lines)


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run it in a thread of its own. Unlike one of the loop's executor, it does not hold up the process's end where it
    is stuck in a write."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as caught:  # noqa: BLE001 - for whoever waits
            error = caught
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=run, name="access log", daemon=True).start()
    return done


def _write_all(descriptor: int, data: bytes) -> None:
    """Not through Python's buffer, whose lock a stuck thread would keep from the interpreter's end."""
    while data:
        data = data[os.write(descriptor, data) :]


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, joined as far as a pipe takes them in one go: several processes may write to it."""
    piece = b""
    for line in lines:
        if piece and len(piece) + len(line) > select.PIPE_BUF:
            yield piece
            piece = b""
        piece += line
    yield piece
