"""Benches as processes, whose children are known by what was told them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process in a session of its own; killed with all of that at the end, if it still runs."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def children_of(pid: int) -> list[str]:
    """Command lines of living processes that this one started, or that were started for it."""
    mark = f"WARMROUTE_PARENT_PID={pid}\0".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes() + b"\0":
                found.append((folder / "cmdline").read_text())
        except OSError:  # it has ended, or is not ours
            continue
    return found


def none_left(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while children_of(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
