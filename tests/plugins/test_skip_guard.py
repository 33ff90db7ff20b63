"""Skips that nobody allowed fail the run, in one process or several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.skip_guard import VARIABLE
from tests.plugins.support import run_pytest

SKIPS = """
import pytest

def test_passes(): pass

def test_skipped(): pytest.skip("no server here")
"""
SKIPPED_AS_A_WHOLE = "import pytest\npytest.importorskip('no_such_module')\n"


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize(("lines", "code"), [("# why\nno server\n", 0), ("# why\nno client\n", 1)])
def test_only_allowed_skips_pass(processes: str, lines: str, code: int, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed.txt"
    allowed.write_text(lines)
    environment = {VARIABLE: str(allowed)}
    files = {"test_made_up.py": SKIPS}
    done = run_pytest(tmp_path, ("skip_guard",), files, "-n", processes, environment=environment)
    assert done.returncode == code, done.stdout
    assert ("test_made_up.py::test_skipped: Skipped: no server here" in done.stdout) == bool(code)


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_file_that_is_skipped_as_a_whole_fails(processes: str, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed.txt"
    allowed.write_text("")
    environment = {VARIABLE: str(allowed)}
    files = {"test_whole.py": SKIPPED_AS_A_WHOLE}
    done = run_pytest(tmp_path, ("skip_guard",), files, "-n", processes, environment=environment)
    assert done.returncode != 0
    assert "test_whole.py: skipped as a whole" in done.stdout
