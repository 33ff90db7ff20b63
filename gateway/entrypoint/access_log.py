"""A line of JSON a request, written in batches by a thread: nothing of it waits for a disk.

A line holds no header but the request id, no query, no body: neither keys nor prompts.
"""

from __future__ import annotations

import asyncio
import logging
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
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
        """Write what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._flush()

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
                await asyncio.to_thread(self._write, entries)
                self._failing = False
            except (
                OSError,
                ValueError,
                RuntimeError,
            ) as error:  # standard output is closed; no thread could be started
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
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        else:
            with self._target.open("ab") as file:
                file.write(b"".join(lines))

    def _drop(self, lines: int) -> None:
        if self._on_drop is not None:
            self._on_drop(lines)


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, joined as far as a pipe takes them in one go: several processes may write to it."""
    piece = b""
    for line in lines:
        if piece and len(piece) + len(line) > select.PIPE_BUF:
            yield piece
            piece = b""
        piece += line
    yield piece
