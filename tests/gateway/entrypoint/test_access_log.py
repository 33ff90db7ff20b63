"""The access log: one line of JSON a request, bounded, without keys or prompts."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import orjson
import pytest

from gateway.entrypoint import access_log
from gateway.entrypoint.access_log import AccessLog
from gateway.entrypoint.flow_control import FlowControl
from gateway.entrypoint.http import Request
from gateway.entrypoint.reply import Reply
from tests.gateway.entrypoint.support import Link, full_pipe, gateway, plain, replying, request, run, worker
from tests.support import eventually


def test_a_line_a_request_and_nothing_secret_in_it(tmp_path: Path) -> None:
    file = tmp_path / "access.log"

    async def main() -> None:
        async with (
            worker(replying(plain(b"fine"))) as engine,
            gateway(engine.port, access_log=str(file)) as gate,
            gate.client() as user,
        ):
            headers = ["Authorization: Bearer sk-secret", "X-Request-Id: one"]
            await user.ask(request(path="/v1/chat/completions?api_key=sk-secret", body=b"a prompt", headers=headers))
            await eventually(file.exists)
            await user.ask(request("GET", "/teapot", b"", ["X-Request-Id: two"]))

    run(main())
    text = file.read_bytes()
    assert b"secret" not in text
    assert b"prompt" not in text
    first, second = map(orjson.loads, text.splitlines())
    assert 0 <= first.pop("seconds") < 10
    assert first.pop("time") > 1e9
    assert first == {
        "request_id": "one",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "worker": "w0",
    }
    assert (second["request_id"], second["status"], second["worker"]) == ("two", 418, "")


def test_a_client_that_left_is_a_499(tmp_path: Path) -> None:
    file = tmp_path / "access.log"

    async def silent(link: Link) -> None:
        await link.request()
        await link.peer_gone()

    async def main() -> None:
        async with worker(silent) as engine, gateway(engine.port, access_log=str(file)) as gate, gate.client() as user:
            user.send(request())
            await eventually(lambda: engine.requests)
            user.leave()
            await gate.result()

    run(main())
    assert orjson.loads(file.read_bytes())["status"] == 499


def test_lines_beyond_the_bound_and_those_that_cannot_be_written_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access_log, "PENDING_LIMIT", 3)
    dropped: list[int] = []

    async def main() -> None:
        log = AccessLog(tmp_path / "missing" / "access.log", dropped.append)
        asked = Request("GET", b"/", "/", "", [], b"", "1.1", True, "", "id", 0.0, {})
        reply = Reply(asyncio.Transport(), FlowControl(), "id", method="GET", version="1.1", keep_alive=True)
        for _ in range(5):
            log.add(asked, reply, 0.1)
        assert dropped == [1, 1]
        await log.stop()
        assert dropped == [1, 1, 3]

    run(main())
    assert "lines are lost" in caplog.text


def test_a_pipe_that_nobody_reads_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "STOP_SECONDS", 0.2)
    dropped: list[int] = []

    async def main(writer: int) -> None:
        with os.fdopen(writer, "wb", closefd=False) as out:
            monkeypatch.setattr(sys, "stdout", out)
            log = AccessLog("json", dropped.append)
            asked = Request("GET", b"/", "/", "", [], b"", "1.1", True, "", "id", 0.0, {})
            reply = Reply(asyncio.Transport(), FlowControl(), "id", method="GET", version="1.1", keep_alive=True)
            log.start()
            log.add(asked, reply, 0.1)
            await eventually(lambda: not log._pending)  # its thread writes, and does not come back
            for _ in range(3):
                log.add(asked, reply, 0.1)
            await asyncio.wait_for(log.stop(), 5)
            assert dropped == [3]

    with full_pipe() as pipe:
        run(main(pipe))
        assert dropped == [3, 1]  # counted as the loop ended


def test_lines_are_written_in_pieces_that_a_pipe_takes_whole() -> None:
    lines = [b"%d\n" % number + b"x" * (7 * number) + b"\n" for number in range(100)]
    pieces = list(access_log._pieces(lines))
    assert b"".join(pieces) == b"".join(lines)
    assert 2 < len(pieces) < len(lines)
    assert all(len(piece) <= 4096 and piece.endswith(b"\n") for piece in pieces)
