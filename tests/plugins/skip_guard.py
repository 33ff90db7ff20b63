"""With WARMROUTE_ALLOWED_SKIPS=FILE, a skip whose reason begins with no line of the file fails the run.

With pytest-xdist reports of tests reach the controlling process, those of files that are skipped as a whole do not:
such a file fails where it is collected.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

VARIABLE = "WARMROUTE_ALLOWED_SKIPS"


class SkipGuard:
    def __init__(self, allowed: Path) -> None:
        lines = allowed.read_text(encoding="utf-8").splitlines()
        self._allowed = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
        self._refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if not reason.removeprefix("Skipped: ").startswith(self._allowed or ("\0",)):
                self._refused.append(f"{report.nodeid}: {reason}")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.skipped:
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid}: skipped as a whole, which is not allowed here"
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._refused:
            terminalreporter.section("skips that are not allowed here", red=True)
            for line in self._refused:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    if allowed := os.environ.get(VARIABLE):
        config.pluginmanager.register(SkipGuard(Path(allowed)), "skip-guard")
