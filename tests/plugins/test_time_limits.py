"""Runs that would never end end soon, and say where they hung."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.support import run_pytest

GRACE = {"WARMROUTE_TEST_GRACE_SECONDS": "1"}

# The signal of pytest-timeout ends neither of the two.
HANGS = {
    "a loop that closes": """
import asyncio, uvloop

async def broken_off():
    for _ in range(3):
        await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    raise RuntimeError("with three servers open")

def test_hangs():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(broken_off())
""",
    "code that catches everything": """
import time

def test_hangs():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
""",
}
PASSES = "def test_passes(): pass\n"


@pytest.mark.parametrize("hang", HANGS)
def test_a_test_that_hangs_ends_the_run_and_is_named(hang: str, tmp_path: Path) -> None:
    # The first hangs only when the warning of open servers is raised within the closing loop.
    raised = ("-W", "error::ResourceWarning")
    files = {"test_made_up.py": HANGS[hang]}
    done = run_pytest(tmp_path, ("time_limits",), files, "--timeout", "1", *raised, environment=GRACE)
    assert done.returncode == 1, done.stdout
    assert "in test_hangs" in done.stderr


def test_with_several_processes_the_others_go_on(tmp_path: Path) -> None:
    files = {"test_hangs.py": HANGS["code that catches everything"], "test_more.py": PASSES}
    flags = ("--timeout", "1", "-n", "1", "--dist", "worksteal")
    done = run_pytest(tmp_path, ("time_limits",), files, *flags, environment=GRACE)
    assert done.returncode == 1, done.stdout
    assert "crashed while running 'test_hangs.py::test_hangs'" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_a_session_that_hangs_outside_of_tests_is_ended(tmp_path: Path) -> None:
    files = {"test_made_up.py": "import time\n" + "time.sleep(60)\n"}
    done = run_pytest(tmp_path, ("time_limits",), files, "--session-timeout", "1", environment=GRACE)
    assert done.returncode == 1, done.stdout
    assert "the session took longer than 1 s" in done.stderr
    assert "test_made_up.py" in done.stderr
