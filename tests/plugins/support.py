"""Runs of pytest over made-up files, with some of the plugins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHIN_SECONDS = 90.0
DROPPED = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS", "WARMROUTE_ALLOWED_SKIPS")


def run_pytest(
    folder: Path,
    plugins: tuple[str, ...],
    files: Mapping[str, str],
    *flags: str,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A run with the settings of this project over these files. It must end by itself."""
    for name, text in files.items():
        (folder / name).write_text(text)
    loaded = [flag for plugin in plugins for flag in ("-p", f"tests.plugins.{plugin}")]
    # Plugins of other packages cost 2 s of imports; the summary has whole lines.
    given = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300"}
    given = {name: value for name, value in given.items() if name not in DROPPED}
    loaded += ["-p", "pytest_timeout", "-p", "xdist"]
    settings = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *settings, *loaded, *flags, *(str(folder / name) for name in files)],
        cwd=ROOT,
        env={**given, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=WITHIN_SECONDS,
        check=False,
    )
