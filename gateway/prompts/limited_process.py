"""A process with bounded memory and time, for files that workers offer: see `limited_child`."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from gateway.prompts.limited_child import LENGTH, MISSING, TEXT, receive

ANSWER_BYTES: Final = 134_217_728
START_SECONDS: Final = 30.0
REST_SECONDS: Final = 2.0
_ENVIRONMENT: Final = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""Threads of libraries take address space, each its own arena."""
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_PASSED_ON: Final = ("PATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "TMPDIR", "VIRTUAL_ENV")
"""What files do in there sees no passwords."""


class RefusedError(Exception):
    """The process answers that it cannot be done; the message says why. `missing`: there is nothing to do it with."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class BrokenError(Exception):
    """No answer: the message says why. `by_question`: it is the question's fault, whose `size` is in bytes."""

    def __init__(self, message: str, *, by_question: bool = False, size: int = 0) -> None:
        super().__init__(message)
        self.by_question = by_question
        self.size = size


class LimitedProcess:
    """Starts when it is asked first, and again after it broke. Safe to use from several threads; they wait in line."""

    def __init__(
        self, *, memory_bytes: int, cpu_seconds: int = 0, opening: Callable[[], tuple[Any, ...]] | None = None
    ) -> None:
        """`memory_bytes`: of address space. `cpu_seconds`: in all; 0: no more than its answers may take. `opening`: the
        question that each process is asked first."""
        self._limits = [str(memory_bytes), str(cpu_seconds)]
        self._memory_bytes = memory_bytes
        self._opening = opening
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._closed = False

    def ask(self, *question: Any, seconds: float) -> bytes:
        """The answer. Blocks for `seconds`, the wait for other threads' questions included; longer where the process
        has to start first, for `START_SECONDS` at most.

        Raises RefusedError, BrokenError.
        """
        with self._turn(seconds) as due:
            connection = self._connection
            if connection is None:
                connection, _, took = self._open(START_SECONDS)
                due += took
            return self._exchange(connection, question, due, seconds)

    def open(self, *, seconds: float) -> bytes:
        """Start it anew; the answer to the opening question. Blocks for `seconds`. Raises RefusedError, BrokenError."""
        with self._turn(seconds):
            self._end()
            return self._open(seconds)[1]

    def rest(self) -> None:
        """End it until it is asked again."""
        with self._turn(REST_SECONDS):
            self._end()

    def close(self) -> None:
        """End it for good, whatever it is at."""
        self._closed = True
        self._end()

    @contextlib.contextmanager
    def _turn(self, seconds: float) -> Iterator[float]:
        due = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise BrokenError("has to wait for others too long")
        try:
            yield due
        finally:
            self._lock.release()

    def _open(self, seconds: float) -> tuple[socket.socket, bytes, float]:
        """The connection, the answer to the opening question, and how long it took."""
        begun = time.monotonic()
        try:
            connection = self._connection = self._start()
        except OSError as error:
            raise BrokenError(f"needs a process, which cannot start: {error}") from error
        try:
            answer = b""
            if self._opening is not None:
                answer = self._exchange(connection, self._opening(), begun + seconds, seconds)
        except RefusedError:
            self._end()
            raise
        return connection, answer, time.monotonic() - begun

    def _exchange(self, connection: socket.socket, question: tuple[Any, ...], due: float, seconds: float) -> bytes:
        data = pickle.dumps((seconds, question))
        try:
            connection.settimeout(max(due - time.monotonic(), 0.001))
            connection.sendall(LENGTH.pack(len(data)))
            connection.sendall(data)
            connection.settimeout(max(due - time.monotonic(), 0.001))
            answer = receive(connection, ANSWER_BYTES)
        except TimeoutError as error:
            self._end()
            raise BrokenError(f"takes longer than {seconds:g} s", by_question=True, size=len(data)) from error
        except (OSError, ValueError):
            answer = None
        if answer is None:
            code = self._end(by_itself=True)
            raise BrokenError(
                f"ends a process that has {self._memory_bytes >> 20} MiB of memory and bounded time (exit code {code})",
                by_question=not self._closed,
                size=len(data),
            )
        if answer[:1] != TEXT:
            raise RefusedError(answer[1:].decode("utf-8", "replace"), missing=answer[:1] == MISSING)
        return answer[1:]

    def _start(self) -> socket.socket:
        if self._closed:
            raise OSError("it is closed")
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "gateway.prompts.limited_child", str(theirs.fileno()), *self._limits]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_environment(),
                start_new_session=True,
            )
        return ours

    def _end(self, *, by_itself: bool = False) -> int | None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        if by_itself:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        process.kill()
        return process.wait()


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    return passed_on | _ENVIRONMENT | {"PYTHONPATH": path}
