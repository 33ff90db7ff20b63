"""What is left open fails its test, and no closing loop is broken off."""

from __future__ import annotations

from pathlib import Path

from tests.plugins.support import run_pytest

LEFT_OPEN = """
import asyncio, pytest, uvloop, warnings

async def leave_open(error=None):
    for _ in range(3):
        await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    if error:
        raise error

def run(main):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)

def test_passes_but_for_that():
    run(leave_open())

def test_fails_anyway():
    run(leave_open(RuntimeError("the reason")))

def test_of_its_own_warning():
    with pytest.warns(ResourceWarning):
        warnings.warn("looked for", ResourceWarning)

@pytest.fixture
def held():
    yield
    run(leave_open())

def test_whose_teardown_leaves_it(held): pass

def test_clean(): pass

def test_other_warnings_are_raised():
    warnings.warn("old", DeprecationWarning)
"""


def test_what_is_left_open_fails_its_test_and_the_run_goes_on(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ("unclosed",), {"test_made_up.py": LEFT_OPEN}, "--timeout", "60")
    summary = done.stdout[done.stdout.index("short test summary") :]
    assert "test_made_up.py::test_passes_but_for_that - tests.plugins.unclosed.LeftOpenError" in summary
    assert "test_made_up.py::test_fails_anyway - RuntimeError: the reason" in summary
    assert "test_made_up.py::test_whose_teardown_leaves_it - tests.plugins.unclosed.LeftOpenError" in summary
    assert "test_made_up.py::test_clean" not in summary
    assert "test_made_up.py::test_other_warnings_are_raised - DeprecationWarning: old" in summary
    assert "unclosed" in done.stdout


def test_what_a_cycle_holds_until_the_end_fails_too(tmp_path: Path) -> None:
    code = """
import socket

def test_leaves_a_cycle():
    held = [socket.socket()]
    held.append(held)
"""
    done = run_pytest(tmp_path, ("unclosed",), {"test_made_up.py": code})
    assert done.returncode == 1
    assert "LeftOpenError" in done.stdout
