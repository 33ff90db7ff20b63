"""The bound on messages in work: never exceeded, fair, and nothing is lost when a wait is cancelled."""

from __future__ import annotations

import asyncio
import random

from indexer.server.inflight import InflightGate

LIMIT = 100


class Gate:
    """A gate, and the sizes of the messages that are inside."""

    def __init__(self) -> None:
        self.gate = InflightGate(LIMIT)
        self.inside: list[int] = []
        self.seen: list[int] = []

    async def pass_through(self, size: int, steps: int = 1) -> None:
        async with self.gate.hold(size):
            self.inside.append(size)
            try:
                assert sum(self.inside) <= LIMIT or self.inside == [size]
                self.seen.append(size)
                for _ in range(steps):
                    await asyncio.sleep(0)
            finally:
                self.inside.remove(size)

    async def check_empty(self) -> None:
        """Nothing is inside and nobody waits: all of it can be had at once."""
        assert self.inside == []
        async with asyncio.timeout(5), self.gate.hold(LIMIT):
            pass


def test_a_large_message_goes_in_before_small_ones_that_came_later() -> None:
    async def scenario() -> list[int]:
        gate = Gate()
        await asyncio.gather(*(gate.pass_through(size, steps=3) for size in (60, 90, 10, 10)))
        return gate.seen

    assert asyncio.run(scenario()) == [60, 90, 10, 10]


def test_one_larger_than_the_limit_goes_in_alone() -> None:
    async def scenario() -> list[int]:
        gate = Gate()
        await asyncio.gather(*(gate.pass_through(size) for size in (10, 5000, 20)))
        await gate.check_empty()
        return gate.seen

    assert asyncio.run(scenario()) == [10, 5000, 20]


def test_cancelled_waits_and_failures_give_back_what_they_had() -> None:
    async def scenario() -> None:
        generator, gate = random.Random(1), Gate()
        for _ in range(200):
            tasks = [
                asyncio.ensure_future(gate.pass_through(generator.randrange(1, 150), generator.randrange(4)))
                for _ in range(8)
            ]
            for _ in range(generator.randrange(6)):
                await asyncio.sleep(0)
                generator.choice(tasks).cancel()
            async with asyncio.timeout(5):
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert not [each for each in ended if isinstance(each, AssertionError)]
            await gate.check_empty()

    asyncio.run(scenario())
