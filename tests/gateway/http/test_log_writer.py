"""Lines written in batches by a thread: bounded, counted when lost, never in the way of the end."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gateway.http import log_writer
from gateway.http.log_writer import LogWriter
from tests.gateway.http.support import full_pipe, run
from tests.support import eventually


def line(entry: str) -> bytes:
    return entry.encode() + b"\n"


def test_lines_are_written_in_order_and_the_file_may_be_rotated(tmp_path: Path) -> None:
    file = tmp_path / "log"

    async def main() -> None:
        log = LogWriter("x", file, line, limit=10)
        task = asyncio.create_task(log.run())
        log.add("a")
        log.add("b")
        await eventually(file.exists)
        file.rename(tmp_path / "log.1")
        log.add("c")
        await eventually(file.exists)
        log.add("d")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await log.stop()

    run(main())
    assert (tmp_path / "log.1").read_bytes() == b"a\nb\n"
    assert file.read_bytes() == b"c\nd\n"


def test_lines_beyond_the_bound_and_those_that_cannot_be_written_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dropped: list[int] = []

    async def main() -> None:
        log = LogWriter("x.log", tmp_path / "missing" / "log", line, limit=3, on_drop=dropped.append)
        for _ in range(5):
            log.add("a")
        assert dropped == [1, 1]
        await log.stop()
        assert dropped == [1, 1, 3]
        log.add("heavy", weight=3)
        log.add("a")
        assert dropped == [1, 1, 3, 1]
        await log.stop()

    run(main())
    assert "x.log: lines are lost" in caplog.text


def test_after_a_write_that_failed_the_next_line_stands_by_itself(tmp_path: Path) -> None:
    """A full disk takes a part of a line."""
    file = tmp_path / "missing" / "log"

    async def main() -> None:
        log = LogWriter("x", file, line, limit=3)
        for entry in "abc":
            log.add(entry)
            await log.stop()
            if entry == "a":
                file.parent.mkdir()
                file.write_bytes(b"part of a")

    run(main())
    assert file.read_bytes() == b"part of a\nb\nc\n"


def test_a_pipe_that_nobody_reads_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "STOP_SECONDS", 0.2)
    dropped: list[int] = []

    async def main(writer: int) -> None:
        with os.fdopen(writer, "wb", closefd=False) as out:
            monkeypatch.setattr(sys, "stdout", out)
            log = LogWriter("x", "json", line, limit=10, on_drop=dropped.append)
            task = asyncio.create_task(log.run())
            log.add("a")
            await eventually(lambda: not log.pending)  # its thread writes, and does not come back
            for _ in range(3):
                log.add("a")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.wait_for(log.stop(), 5)
            assert dropped == [3]

    with full_pipe() as pipe:
        run(main(pipe))
        assert dropped == [3, 1]  # counted as the loop ended


def test_lines_are_written_in_pieces_that_a_pipe_takes_whole() -> None:
    lines = [b"%d\n" % number + b"x" * (7 * number) + b"\n" for number in range(100)]
    pieces = list(log_writer._pieces(lines))
    assert b"".join(pieces) == b"".join(lines)
    assert 2 < len(pieces) < len(lines)
    assert all(len(piece) <= 4096 and piece.endswith(b"\n") for piece in pieces)
