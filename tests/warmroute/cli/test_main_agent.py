"""`warmroute agent` as a process: waits for its engine, says so, and ends on a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from tests.ports import free_ports


def readyz(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}


def test_it_waits_for_an_engine_that_is_not_there_and_ends_on_a_signal() -> None:
    engine, admin = free_ports(2)
    argv = [sys.executable, "-m", "warmroute", "agent", "--engine-url", f"http://127.0.0.1:{engine}"]
    with subprocess.Popen([*argv, "--admin-port", str(admin)], stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 30
            while (answer := readyz(admin))[0] != 503 or "waiting" not in answer[1].get("engine", ""):
                assert time.monotonic() < deadline, answer
                assert process.poll() is None
                time.sleep(0.05)
            assert f"http://127.0.0.1:{engine} does not answer" in answer[1]["engine"]
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert said.count("waiting for the engine") == 1
    assert "Traceback" not in said
