"""Limits that end a run whatever it hangs in, beside those of pytest-timeout.

pytest-timeout's signal raises an exception in the test, which then fails and the run goes on. Code that catches the
exception, or a loop that waits in C, goes on too. So there are two harder limits, each `GRACE_SECONDS` after a
softer one:

- a test: the process writes the stacks of its threads and exits. A thread of faulthandler's does it, which needs no
  interpreter lock. With pytest-xdist another process takes over, and the test is reported as the one that crashed it.
- the session (`session_timeout`, looked at between two tests by pytest-timeout): the controlling process does the same.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Generator
from typing import Any, Final

import pytest

GRACE_SECONDS: Final = float(os.environ.get("WARMROUTE_TEST_GRACE_SECONDS", "15"))


class TimeLimits:
    def __init__(self) -> None:
        # pytest captures stderr while a test runs, but not now.
        self._stderr = os.dup(2)
        self._session: threading.Timer | None = None

    def limit_session(self, seconds: float) -> None:
        self._session = threading.Timer(seconds + GRACE_SECONDS, self._end_session, [seconds])
        self._session.daemon = True
        self._session.start()

    def _end_session(self, seconds: float) -> None:
        os.write(self._stderr, f"\nthe session took longer than {seconds:g} s: it is ended\n".encode())
        faulthandler.dump_traceback(self._stderr)
        os._exit(1)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, settings: Any) -> None:
        # Not taken back by `pytest_timeout_cancel_timer`, which comes as soon as a test fails: its teardown may hang.
        faulthandler.dump_traceback_later(settings.timeout + GRACE_SECONDS, exit=True, file=self._stderr)

    def pytest_unconfigure(self) -> None:
        if self._session is not None:
            self._session.cancel()
        os.close(self._stderr)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("usepdb") or config.getoption("trace"):
        return  # a person is at work
    limits = TimeLimits()
    config.pluginmanager.register(limits, "time-limits")
    seconds = config.getoption("session_timeout") or config.getini("session_timeout")
    if seconds and not hasattr(config, "workerinput"):
        limits.limit_session(float(seconds))
