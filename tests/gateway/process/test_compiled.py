"""The compiled build is an option: what runs is told, and what is stale does not run."""

from __future__ import annotations

import hashlib
import json
import runpy
from pathlib import Path

import pytest

from gateway.process import compiled
from warmroute.process.lifecycle import StartupError

ROOT = Path(__file__).parents[3]


def test_every_module_that_is_compiled_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMROUTE_COMPILE", raising=False)
    monkeypatch.setattr("setuptools.setup", lambda **arguments: None)
    paths: list[str] = runpy.run_path(str(ROOT / "setup.py"))["PATHS"]
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert "gateway/http/exchange.py" in paths  # by it the others are judged


def test_what_runs_is_told() -> None:
    assert compiled.description() == ("compiled" if compiled.is_compiled() else "pure Python")


def test_sources_that_changed_since_they_were_compiled_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, digests = tmp_path / "hot.py", tmp_path / "compiled.json"
    source.write_text("x = 1\n")
    noted = {"hot.py": hashlib.sha256(source.read_bytes()).hexdigest(), "left_out.py": "0"}
    digests.write_text(json.dumps(noted))
    monkeypatch.setattr(compiled, "is_compiled", lambda: True)
    compiled.check(tmp_path, digests)
    source.write_text("x = 2\n")
    with pytest.raises(StartupError, match=r"hot\.py has changed since it was compiled; run `make compile` again"):
        compiled.check(tmp_path, digests)
    digests.unlink()
    with pytest.raises(StartupError, match="compiling has failed half-way; run `make compile` again"):
        compiled.check(tmp_path, digests)
    monkeypatch.setattr(compiled, "is_compiled", lambda: False)
    compiled.check(tmp_path, digests)  # the sources run
