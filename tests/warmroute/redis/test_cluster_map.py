"""Whom the cluster's client asks for the map of slots."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from warmroute.redis.cluster_map import ClusterMap


def test_a_node_that_has_just_failed_is_asked_last() -> None:
    asked: list[str] = []

    class Node:
        """Answers for a cluster of one node but for the lost one, which hangs."""

        deadline_seconds = 5.0

        def __init__(self, host: str, port: int) -> None:
            self.host = host

        async def execute_command(self, *_: str) -> list[Any]:
            asked.append(self.host)
            if self.host == "lost":
                raise RedisTimeoutError("too slow")
            return [[0, 16383, [b"well", 1, b""]]]

        async def aclose(self) -> None: ...

    async def scenario() -> None:
        for _ in range(50):
            asked.clear()
            slots = ClusterMap([("seed", 1)], Node)  # type: ignore[arg-type]
            slots.client(("lost", 1))
            slots.client(("well", 1))
            slots.expire(("lost", 1))
            assert await slots.owner(b"key") == ("well", 1)
            assert "lost" not in asked
            await slots.aclose()

    asyncio.run(scenario())
