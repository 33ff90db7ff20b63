"""A line of JSON a request.

A line holds no header but the request id, no query, no body: neither keys nor prompts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import orjson

from gateway.http.log_writer import LogWriter
from gateway.http.message import Request
from gateway.http.reply import Reply

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
    """Notes what was answered; `gateway.http.log_writer` writes it."""

    def __init__(self, target: Literal["json"] | Path, on_drop: Callable[[int], None] | None = None) -> None:
        """`target` and `on_drop` as of `LogWriter`."""
        self._writer = LogWriter("gateway.access_log", target, _line, limit=PENDING_LIMIT, on_drop=on_drop)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.get_running_loop().create_task(self._writer.run())

    def add(self, request: Request, reply: Reply, seconds: float) -> None:
        """Note an answered request."""
        self._add(reply, request.client, request.method, request.path, seconds)

    def add_refused(self, reply: Reply, client: str, method: str, path: str, seconds: float) -> None:
        """Note a request that was refused before it was whole: `method` and `path` as far as they had come."""
        self._add(reply, client, method, path, seconds)

    def _add(self, reply: Reply, client: str, method: str, path: str, seconds: float) -> None:
        self._writer.add(
            Entry(
                time.time(),
                reply.request_id,
                client,
                method,
                path[:PATH_LIMIT],
                reply.final_status,
                reply.upstream,
                seconds,
            )
        )

    async def stop(self) -> None:
        """Write what is left, as far as that is done in time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._writer.stop()


def _line(entry: Entry) -> bytes:
    # Paths are latin-1 and ids ASCII: always valid UTF-8.
    return orjson.dumps({**entry._asdict(), "seconds": round(entry.seconds, 3)}, option=orjson.OPT_APPEND_NEWLINE)
