"""`warmroute explain`, as it is called, against something that answers."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.ports import free_ports
from tests.warmroute.cli.test_explain_table import explanation
from warmroute.cli.main import main

sessions: list[str | None] = []
"""The session header of each request."""
BODY = b'{"model": "m", "messages": []}'


@contextmanager
def answering(status: int, answer: bytes) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Its URL, and the targets and bodies that it was asked with."""
    asked: list[tuple[str, bytes]] = []
    sessions.clear()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sessions.append(self.headers["x-session-id"])
            asked.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "request.json"
    path.write_bytes(BODY)
    return str(path)


def test_text_and_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.dumps(explanation()).encode()
    with answering(200, answer) as (url, asked):
        assert main(["explain", file, "--url", url + "/", "--path", "/v1/completions", "--tenant", "a&b"]) == 0
        assert "Winner: vllm-0" in capsys.readouterr().out
        assert asked == [("/explain?path=%2Fv1%2Fcompletions&tenant=a%26b", BODY)]
        assert main(["explain", file, "--url", url, "--json", "--header", "X-Session-ID: a b"]) == 0
        assert sessions == [None, "a b"]
        assert json.loads(capsys.readouterr().out) == explanation()
        assert asked[1] == ("/explain?path=%2Fv1%2Fchat%2Fcompletions", BODY)


def test_from_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(BODY)))
    with answering(200, json.dumps(explanation()).encode()) as (url, asked):
        assert main(["explain", "-", "--url", url]) == 0
    assert asked[0][1] == BODY


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (400, b'{"error": {"message": "model: give one"}}', "the gateway would answer 400: model: give one"),
        (503, b'{"error": {"message": "no process answers"}}', "no process answers"),
        (404, b"404: Not Found", "it answers 404"),
        (404, b'{"error": {"message": "no POST /explain", "code": "not_found"}}', "no gateway's admin port answers"),
        (200, b"ok", "no JSON"),
        (200, b"[]", "no JSON object"),
        (200, b"{}", "another shape"),
    ],
)
def test_what_does_not_explain_is_said_in_one_line(
    file: str, capsys: pytest.CaptureFixture[str], status: int, answer: bytes, message: str
) -> None:
    with answering(status, answer) as (url, _):
        assert main(["explain", file, "--url", url]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("warmroute explain: ")
    assert message in found.err
    assert len(found.err.splitlines()) == 1


def test_wrong_calls(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nothing,) = free_ports(1)
    empty = tmp_path / "empty"
    empty.touch()
    for arguments, message in (
        (
            [file, "--url", f"http://127.0.0.1:{nothing}"],
            f"explain.url: no gateway's admin port answers at http://127.0.0.1:{nothing}",
        ),
        ([file, "--url", "127.0.0.1:8001"], "give http://host:port or https://"),
        ([file, "--path", "v1"], "explain.path"),
        ([file, "--header", "x-session-id"], "--header: 'x-session-id' is no header"),
        ([file, "--header", "a: b\r\nc: d"], "is no header"),
        ([str(tmp_path / "none")], "cannot be read: No such file"),
        ([str(empty)], "is empty"),
    ):
        assert main(["explain", *arguments]) == 2
        assert message in capsys.readouterr().err
