"""What `up` and `demo` start their parts with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import redis

from tests.e2e.support import plan
from warmroute.cli.children import Child, free_ports, is_taken, stop_all
from warmroute.cli.stack import PartDiedError, Stack, get_json
from warmroute.process.lifecycle import StartupError


def test_free_ports_are_free_and_taken_ones_are_noticed() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert not any(is_taken("127.0.0.1", port) for port in ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert is_taken("127.0.0.1", ports[0])
    with pytest.raises(OSError, match=r"not known|resolution"):
        is_taken("nowhere.invalid", ports[0])


def test_the_embedded_server_serves_and_ends(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    child = Child("redis", ["warmroute.cli.embedded_redis", str(port)], tmp_path / "log")
    with redis.Redis(port=port, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200)) as client:
        assert client.ping()
        assert client.config_get("maxmemory-policy") == {b"maxmemory-policy": b"noeviction"} or client.config_get(
            "maxmemory-policy"
        ) == {"maxmemory-policy": "noeviction"}
    stop_all([child])
    assert child.exit_code == 0
    assert is_taken("127.0.0.1", port) is False


def test_a_part_that_dies_at_its_start_is_named_with_its_last_lines(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (taken,) = free_ports(1)
    with socket.create_server(("127.0.0.1", taken)):
        broken = plan(1)
        gateway = (broken.gateways[0][0], broken.gateways[0][1], type(broken.indexer)(taken, broken.indexer.admin))
        wrong = plan(1, gateways=[gateway])
        with pytest.raises(PartDiedError, match="gateway ended by itself") as caught, Stack(wrong, lambda _: None):
            pass
    assert f"gateway.port: cannot listen on 127.0.0.1:{taken}" in str(caught.value)


def test_no_room_for_logs_is_a_message(monkeypatch) -> None:
    def refuse(*_, **__):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(StartupError, match="TMPDIR"):
        Stack(plan(1), lambda _: None)


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = {"/json": (503, b'{"a": 1}'), "/list": (200, b"[]"), "/text": (200, b"hi")}[self.path]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None: ...


def test_json_is_asked_for_directly_and_anything_else_is_none(monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert get_json(f"{url}/json") == {"a": 1}
            assert get_json(f"{url}/list") is None
            assert get_json(f"{url}/text") is None
        finally:
            server.shutdown()
            thread.join()
    assert get_json(f"http://127.0.0.1:{free_ports(1)[0]}/") is None


def test_children_are_configured_by_their_files_alone() -> None:
    code = (
        "from warmroute.cli.children import _environment as environment;"
        "print(sorted(name for name in environment() if name.startswith('WARMROUTE_')))"
    )
    given = {**os.environ, "WARMROUTE_GATEWAY_PORT": "1", "WARMROUTE_LOG_LEVEL": "debug"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert "WARMROUTE_GATEWAY_PORT" not in done.stdout
    assert "WARMROUTE_LOG_LEVEL" not in done.stdout
    assert "WARMROUTE_PARENT_PID" in done.stdout


def test_a_refusal_before_any_part_has_started_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (nothing,) = free_ports(1)
    with pytest.raises(StartupError, match="redis"), Stack(plan(1, redis_url=f"redis://127.0.0.1:{nothing}"), print):
        pytest.fail("it started without its Redis")
    assert list(tmp_path.iterdir()) == []
