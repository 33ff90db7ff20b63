"""`warmroute up` as a user runs it: starts, says what runs where, ends cleanly, fails with a message."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_ports
from warmroute.cli.stack import get_json

pytestmark = pytest.mark.timeout(240)


def command(*flags: str) -> list[str]:
    port, admin, indexer, indexer_admin, worker, worker_admin = _blocks()
    assert admin == port + 1
    return [
        *(sys.executable, "-m", "warmroute", "up", "--workers", "1"),
        *("--port", str(port), "--indexer-port", str(indexer), "--indexer-admin-port", str(indexer_admin)),
        *("--worker-port", str(worker), "--worker-admin-port", str(worker_admin), *flags),
    ]


def _blocks() -> list[int]:
    """Free ports, the first two of them neighbours."""
    while True:
        ports = free_ports(6)
        if ports[1] == ports[0] + 1:
            return ports


@contextmanager
def up(*flags: str, environment: dict[str, str] | None = None) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    arguments = command(*flags)
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield process, arguments
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """Output up to the line that matches; the process must not end before."""
    seen = ""
    assert process.stdout is not None
    for line in process.stdout:
        seen += line
        if re.search(pattern, line):
            return seen
    raise AssertionError(f"ended before {pattern!r}:\n{seen}")


def descendants(pid: int) -> set[int]:
    """Live processes below one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            fields = stat.rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found, level = set(), {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def gone(pids: set[int], within: float = 20.0) -> bool:
    deadline = time.monotonic() + within
    while alive := {pid for pid in pids if Path(f"/proc/{pid}").exists() and not _is_zombie(pid)}:
        if time.monotonic() > deadline:
            raise AssertionError(f"still running: {alive}")
        time.sleep(0.05)
    return True


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture(autouse=True)
def logs_of_failed_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept for the user; here they go with the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_up_serves_and_stops_cleanly(number: signal.Signals) -> None:
    with up() as (process, arguments):
        said = read_until(process, "curl -si")
        port = arguments[arguments.index("--port") + 1]
        assert f"http://127.0.0.1:{port}   OpenAI API" in said
        curl = said.splitlines()[-1].strip()
        # That it serves does not depend on how it is stopped.
        if number == signal.SIGINT and shutil.which("curl"):
            for expected in ("0", "64"):
                answer = subprocess.run(
                    ["/bin/sh", "-c", curl], capture_output=True, text=True, timeout=60, check=True
                ).stdout
                assert "HTTP/1.1 200" in answer
                assert f"x-warmroute-matched-tokens: {expected}" in answer
        children = descendants(process.pid)
        assert len(children) >= 4
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Stopped." in output
        assert "Traceback" not in output
        assert gone(children)


def test_children_end_with_a_killed_parent() -> None:
    with up() as (process, _):
        read_until(process, "curl -si")
        children = descendants(process.pid)
        process.kill()
        process.wait()
        assert gone(children)


def test_the_last_worker_that_dies_ends_up_with_a_message() -> None:
    with up() as (process, arguments):
        read_until(process, "curl -si")
        admin = int(arguments[arguments.index("--port") + 1]) + 1
        assert get_json(f"http://127.0.0.1:{admin}/readyz")["ready"]
        (worker,) = [
            pid for pid in descendants(process.pid) if b"worker-1.yaml" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(worker, signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "worker-1 ended by itself (signal 9)" in output
        assert "no worker is left" in output
        assert "Traceback" not in output


def test_taken_ports_are_named_with_their_flag() -> None:
    arguments = command()
    port = arguments[arguments.index("--worker-port") + 1]
    with socket.create_server(("127.0.0.1", int(port))):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"--worker-port: {port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_redis_that_is_not_there_is_a_message() -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    done = subprocess.run(command("--redis-url", url), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"--redis-url: {url} does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_redis_that_evicts_is_refused(valkey, redis_url: str) -> None:
    import redis

    with redis.Redis(host=valkey.host, port=valkey.port) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            done = subprocess.run(
                command("--redis-url", redis_url), capture_output=True, text=True, timeout=120, check=False
            )
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert done.returncode == 2
    assert "maxmemory-policy noeviction" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_a_message(tmp_path: Path) -> None:
    """The cache folder lies where nothing can be written."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = subprocess.run(
        command(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "WARMROUTE_CACHE_DIR": str(blocked / "cache")},
    )
    assert done.returncode == 2
    assert "WARMROUTE_CACHE_DIR" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workers", "0"], "up.workers: 0 (from --workers)"),
        (["--worker-port", "65535", "--workers", "2"], "--worker-port: ports must lie in 1 to 65535"),
        (["--host", "nowhere.invalid"], "--host: cannot listen on nowhere.invalid"),
        (["--redis-url", "localhost:6379"], "up.redis_url: 'localhost:6379'"),
        (["--policy", "fastest"], "up.policy: 'fastest'"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml cannot be read"),
    ],
)
def test_bad_settings_are_refused(flags: list[str], said: str) -> None:
    done = subprocess.run(command(*flags), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
