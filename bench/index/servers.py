"""Redis and the indexer as they are deployed: a Valkey server and `warmroute indexer`, each a child process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from redis import Redis
from redis.exceptions import RedisError

from bench.index.processes import ProcessDiedError, cpu_seconds
from warmroute.cli.children import Child, free_ports, stop_all

START_SECONDS: Final = 30.0


class Servers:
    """Starts Redis at once and the indexer when told to; both end with the block."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warmroute-bench-")
        redis_port, self._grpc_port, self._admin_port = free_ports(3)
        self.redis_url = f"redis://127.0.0.1:{redis_port}/0"
        self.indexer_address = f"127.0.0.1:{self._grpc_port}"
        self._children: list[Child] = []
        self._redis_port = redis_port

    def __enter__(self) -> Self:
        self._start("redis", "warmroute.cli.embedded_redis", str(self._redis_port))
        with Redis.from_url(self.redis_url) as redis:
            self._wait(lambda: _answers(redis), "redis")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_all(self._children)
        self._folder.cleanup()

    def start_indexer(self) -> None:
        """`warmroute indexer` with its defaults, open as the bench's workers have no token."""
        ports = ("--port", str(self._grpc_port), "--admin-port", str(self._admin_port), "--open", "true")
        self._start("indexer", "warmroute", "indexer", *ports, "--redis-url", self.redis_url)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far, by name."""
        return {child.name: cpu_seconds(child.pid) for child in self._children}

    def _start(self, name: str, *arguments: str) -> None:
        self._children.append(Child(name, arguments, Path(self._folder.name) / f"{name}.log"))

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        child = next(child for child in self._children if child.name == name)
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if child.exit_code is not None or time.monotonic() > deadline:
                raise ProcessDiedError(f"{name} did not start:\n{child.last_lines()}")
            time.sleep(0.02)


def _answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisError:
        return False
