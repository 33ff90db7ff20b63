"""Helpers of the tests; no fixtures here."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from warmroute.config.redis import RedisConfig
from warmroute.redis.client import Client, connect


async def eventually(condition: Callable[[], Any], *, within: float = 10.0, what: str = "") -> Any:
    """Wait until the condition (sync or async) is truthy, and return its value; fail after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {within} s: {what or inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.01)


def folder_of(folder: Path, files: Mapping[str, bytes]) -> Path:
    """The folder, with these files in it."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@asynccontextmanager
async def redis_client(url: str) -> AsyncIterator[Client]:
    client = connect(RedisConfig(url=url))
    try:
        yield client
    finally:
        await client.aclose()
