"""Child processes of `up` and `demo`: started with a log file each, watched, ended in order."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from warmroute.config.model import Config

PARENT_VARIABLE: Final = "WARMROUTE_PARENT_PID"
STOP_SECONDS: Final = 10.0
TAIL_BYTES: Final = 4096
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Called by a child: get SIGTERM when the parent ends, even if it is killed. Only Linux has this."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the call took effect
        os.kill(os.getpid(), signal.SIGTERM)


def _environment() -> dict[str, str]:
    """A child is configured by its file alone: settings in this environment were meant for the parent."""
    sections = tuple(f"WARMROUTE_{section.upper()}_" for section in Config.model_fields)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(sections)}
    return {**kept, PARENT_VARIABLE: str(os.getpid())}


class Child:
    """One process. Its output goes to a file; the last lines are for messages."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal reaches the parent alone, which ends its children in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.poll()

    def last_lines(self, count: int = 5) -> str:
        """The end of its output, indented."""
        with self.log.open("rb") as output:
            output.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = output.read().decode("utf-8", "replace").splitlines()[-count:]
        return "\n".join(f"    {line}" for line in lines)

    def terminate(self) -> None:
        if self.exit_code is None:
            self._process.terminate()

    def wait(self, deadline: float) -> None:
        """Wait until `deadline` (time.monotonic), then kill it."""
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stop_all(children: Sequence[Child]) -> None:
    """End the children, the last started first: gateways drain before their workers go.

    Further signals are ignored meanwhile: the wait has a deadline, and nothing may be left behind.
    """
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    deadline = time.monotonic() + STOP_SECONDS
    try:
        for child in reversed(children):
            child.terminate()
            if child.name.startswith("gateway"):
                child.wait(deadline)
        for child in children:
            child.wait(deadline)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()


def is_taken(host: str, port: int) -> bool:
    """Whether something listens on the port already. Raises OSError where listening fails for another reason."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False
