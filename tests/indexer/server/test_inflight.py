"""The bound on messages in work: never exceeded, fair, and nothing is lost when a wait is cancelled."""

from __future__ import annotations

import asyncio
import random

from indexer.server.inflight import InflightGate

LIMIT = 100


async def pass_through(gate: InflightGate, size: int, seen: list[int], steps: int = 1) -> None:
    async with gate.hold(size):
        assert gate.held_bytes <= LIMIT
        seen.append(size)
        for _ in range(steps):
            await asyncio.sleep(0)


def test_a_large_message_goes_in_before_small_ones_that_came_later() -> None:
    async def scenario() -> list[int]:
        gate, seen = InflightGate(LIMIT), []
        await asyncio.gather(*(pass_through(gate, size, seen, steps=3) for size in (60, 90, 10, 10)))
        return seen

    assert asyncio.run(scenario()) == [60, 90, 10, 10]


def test_one_larger_than_the_limit_goes_in_alone() -> None:
    async def scenario() -> list[int]:
        gate, seen = InflightGate(LIMIT), []
        await asyncio.gather(*(pass_through(gate, size, seen) for size in (10, 5000, 20)))
        assert gate.held_bytes == 0
        return seen

    assert asyncio.run(scenario()) == [10, 5000, 20]


def test_cancelled_waits_and_failures_give_back_what_they_had() -> None:
    async def scenario() -> None:
        generator, gate, seen = random.Random(1), InflightGate(LIMIT), []
        for _ in range(200):
            tasks = [
                asyncio.ensure_future(pass_through(gate, generator.randrange(1, 150), seen, generator.randrange(4)))
                for _ in range(8)
            ]
            for _ in range(generator.randrange(6)):
                await asyncio.sleep(0)
                generator.choice(tasks).cancel()
            async with asyncio.timeout(5):
                await asyncio.gather(*tasks, return_exceptions=True)
            assert gate.held_bytes == 0
            assert not gate._waiting

    asyncio.run(scenario())
