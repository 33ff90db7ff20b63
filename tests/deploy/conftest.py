"""helm, promtool, and the repository's root for the tests of deploy/."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Render = Callable[..., subprocess.CompletedProcess[str]]
Manifests = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def chart(root: Path) -> Path:
    return root / "deploy" / "helm" / "warmroute"


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run helm with arguments."""
    binary = os.environ.get("WARMROUTE_TEST_HELM") or shutil.which("helm")
    if binary is None:
        pytest.skip("helm is missing: put it on PATH or set WARMROUTE_TEST_HELM")

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, check=False, **options)

    return run


@pytest.fixture(scope="session")
def template(helm: Callable[..., subprocess.CompletedProcess[str]], chart: Path) -> Render:
    """Render the chart with values given as a mapping; does not check that it worked."""

    def render(
        values: dict[str, Any], *, release: str = "warm", namespace: str = "llm"
    ) -> subprocess.CompletedProcess[str]:
        return helm(
            "template", release, str(chart), "--namespace", namespace, "--values", "-", input=yaml.safe_dump(values)
        )

    return render


@pytest.fixture(scope="session")
def manifests(template: Render) -> Manifests:
    """Render the chart and parse the objects; fails with helm's message where it refuses."""

    def render(values: dict[str, Any] | None = None, **options: str) -> list[dict[str, Any]]:
        result = template(values or {}, **options)
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    return render


@pytest.fixture(scope="session")
def promtool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run promtool with arguments."""
    binary = os.environ.get("WARMROUTE_TEST_PROMTOOL") or shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is missing: install prometheus or set WARMROUTE_TEST_PROMTOOL")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, check=False)

    return run
