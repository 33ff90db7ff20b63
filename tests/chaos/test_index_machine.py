"""Hypothesis breaks the index, one small step at a time; whenever it stops, the mirrors are exact soon.

WARMROUTE_CHAOS_EXAMPLES lengthens a run. Everything is real: servers, sockets, streams.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack, suppress

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from redis.exceptions import RedisError

from tests.chaos.cluster import FAULTS, INTRUSIONS, Cluster, cluster, inject

EXAMPLES = int(os.environ.get("WARMROUTE_CHAOS_EXAMPLES", "10"))
WORKERS = 4
HEAL_SECONDS = 2.0 * float(os.environ.get("WARMROUTE_TIME_SCALE", "5"))
workers = st.integers(0, WORKERS - 1)


class IndexMachine(RuleBasedStateMachine):
    """The event loop stands still between two steps, so that a step is as long as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.cluster: Cluster | None = None

    def do(self, coroutine) -> None:
        with suppress(RedisError, OSError):
            self.runner.run(coroutine)

    @initialize(seed=st.integers(0, 1 << 30), parts=st.sampled_from([1, 1, 3]))
    def start(self, seed: int, parts: int) -> None:
        logging.disable(logging.CRITICAL)
        self.cluster = self.runner.run(self.stack.enter_async_context(cluster(seed, workers=WORKERS, parts=parts)))

    @rule(number=workers, blocks=st.sets(st.integers(0, 40), min_size=1, max_size=8), milliseconds=st.integers(0, 120))
    def change(self, number: int, blocks: set[int], milliseconds: int) -> None:
        async def change() -> None:
            for block in blocks:
                self.cluster.toggle(number, block)
            await asyncio.sleep(milliseconds / 1000)

        self.do(change())

    @rule(name=st.sampled_from(sorted(FAULTS)), milliseconds=st.integers(0, 120))
    def fault(self, name: str, milliseconds: int) -> None:
        async def fault() -> None:
            await inject(self.cluster, name)
            await asyncio.sleep(milliseconds / 1000)

        self.do(fault())

    @rule(number=workers, kind=st.sampled_from(INTRUSIONS))
    def intrude(self, number: int, kind: str) -> None:
        self.do(self.cluster.intrude(number, kind))

    @rule(milliseconds=st.integers(50, 400))
    def pause_and_cut(self, milliseconds: int) -> None:
        """What one indexer has yet to write waits while the worker says Hello to another."""

        async def pause_and_cut() -> None:
            for number in range(WORKERS):
                self.cluster.toggle(number, 1)
                self.cluster.move(number)
            await asyncio.sleep(0.02)
            await self.cluster.pause(milliseconds)
            self.cluster.cut()

        self.do(pause_and_cut())

    @rule()
    def heal(self) -> None:
        self.runner.run(self.cluster.heal(within=HEAL_SECONDS))

    def teardown(self) -> None:
        try:
            if self.cluster is not None:
                self.runner.run(self.cluster.heal(within=HEAL_SECONDS))
        finally:
            self.runner.run(self.stack.aclose())
            self.runner.close()
            logging.disable(logging.NOTSET)


TestIndexMachine = pytest.mark.timeout(900)(IndexMachine.TestCase)
# Shrinking needs failures that come again; these depend on time.
TestIndexMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
