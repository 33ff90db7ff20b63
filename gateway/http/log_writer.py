"""Lines for a file or for standard output, written in batches by a thread: nothing of a request waits for a disk."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.5
STOP_SECONDS: Final = 2.0
"""How long the last lines may take: a pipe that nobody reads must not hold up the end."""

Entry = TypeVar("Entry")


class LogWriter(Generic[Entry]):
    """Takes entries on the loop's thread; `run`, a task of the loop whose owner ends it and then calls `stop`, hands
    them to a thread, one batch at a time. Entries become lines on that thread."""

    def __init__(
        self,
        name: str,
        target: Literal["json"] | Path,
        line: Callable[[Entry], bytes],
        *,
        limit: int,
        on_drop: Callable[[int], None] | None = None,
    ) -> None:
        """`json` writes to standard output. A file is opened for each batch, so that it may be rotated. `name`: the
        setting, for what is logged when lines are lost; `on_drop` is told how many. `line` gives an entry's line with
        its end. At most `limit` of weight waits to be written; more is dropped."""
        self._name = name
        self._target = target
        self._line = line
        self._limit = limit
        self._on_drop = on_drop
        self._pending: list[Entry] = []
        self._weight = 0
        self._failing = False
        self._writing = asyncio.Lock()

    @property
    def pending(self) -> int:
        """Entries that wait for the next batch."""
        return len(self._pending)

    def add(self, entry: Entry, weight: int = 1) -> None:
        """Note an entry. `weight`: what it takes of the limit."""
        if self._weight >= self._limit:
            self._drop(1)
            return
        self._weight += weight
        self._pending.append(entry)

    async def run(self) -> None:
        """Write twice a second."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            # Shielded: a batch that was begun is written to its end.
            await asyncio.shield(self._flush())

    async def stop(self) -> None:
        """Write what is left, as far as that is done within `STOP_SECONDS`."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._flush()
        except TimeoutError:
            self._drop(len(self._take()))
            logger.error("%s: the last lines are lost: nobody takes them", self._name)  # noqa: TRY400

    def _take(self) -> list[Entry]:
        entries, self._pending, self._weight = self._pending, [], 0
        return entries

    async def _flush(self) -> None:
        async with self._writing:
            entries = self._take()
            if not entries:
                return
            try:
                await _in_thread(partial(self._write, entries), self._name)
                self._failing = False
            except asyncio.CancelledError:
                self._drop(len(entries))
                raise
            except (OSError, ValueError, RuntimeError) as error:  # also: a closed standard output, no thread to be had
                self._drop(len(entries))
                if not self._failing:  # once, not twice a second
                    self._failing = True
                    logger.error("%s: lines are lost: %s", self._name, error)  # noqa: TRY400

    def _write(self, entries: Sequence[Entry]) -> None:
        lines = [self._line(entry) for entry in entries]
        if self._target == "json":
            for piece in _pieces(lines):
                _write_all(sys.stdout.fileno(), piece)
        else:
            # A write that failed may have left a part of a line, which must not spoil the next one.
            with self._target.open("ab") as file:
                file.write((b"\n" if self._failing else b"") + b"".join(lines))

    def _drop(self, lines: int) -> None:
        if self._on_drop is not None:
            self._on_drop(lines)


def _in_thread(work: Callable[[], None], name: str) -> asyncio.Future[None]:
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

    threading.Thread(target=run, name=name, daemon=True).start()
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
