"""Tests against engines that no machine has by itself: collected only where the environment says how to start them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.engine import Engine
from tests.live.fleet import INDEX_TOKENS, Fleet, fleet_of
from tests.live.tally import TALLY

collect_ignore = [] if os.environ.get("WARMROUTE_LIVE_VLLM_SERVE") else ["test_vllm.py"]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """Two servers for all tests: each takes a minute to start. Their caches keep what earlier tests left."""
    folder = tmp_path_factory.mktemp("engines")
    # One binds a port that the system chooses and says so; the other connects to its agent, at the same port for life.
    engines = [Engine(folder, "vllm-0", connects=False), Engine(folder, "vllm-1", connects=True)]
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait()
        yield engines
    finally:
        for engine in engines:
            engine.kill()


@pytest.fixture
def index_tokens() -> int:
    return INDEX_TOKENS


@pytest.fixture
def fleet(
    engines: list[Engine], index_tokens: int, tmp_path: Path, redis_url: str, request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    """Index, gateway and an agent beside each engine, which all start with empty hands."""
    with fleet_of(engines, index_tokens, tmp_path, redis_url, request.node.name) as fleet:
        yield fleet


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY.rows:
        terminalreporter.section("predicted against reported cached tokens")
        for line in TALLY.lines():
            terminalreporter.line(line)
