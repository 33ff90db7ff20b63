"""The index under a load that never rests, with a fault every few seconds: after each the mirrors are exact soon.

WARMROUTE_CHAOS_SEED and WARMROUTE_CHAOS_SECONDS repeat or lengthen a run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random

import pytest

from indexer.server import file_transfers as file_transfers
from tests.chaos.cluster import FAULTS, Cluster, cluster, inject
from tests.support import eventually

SEED = int(os.environ.get("WARMROUTE_CHAOS_SEED", "0")) or random.randrange(1, 1 << 31)
SECONDS = float(os.environ.get("WARMROUTE_CHAOS_SECONDS", "20"))
WORKERS = 50
BLOCKS = 200
FAULT_SECONDS = 5.0
# What was lost without a Hello that follows is found at the next look.
FILE_SECONDS = file_transfers.RECHECK_SECONDS + 15.0
HEAL_SECONDS = 2.0 * float(os.environ.get("WARMROUTE_TIME_SCALE", "2"))


async def work(made: Cluster, seconds: float) -> int:
    """All workers store and remove as fast as this process can, in turns that leave the streams their share."""
    loop = asyncio.get_running_loop()
    ends_at, changes = loop.time() + seconds, 0
    while loop.time() < ends_at:
        for number in range(WORKERS):
            for _ in range(4):
                made.toggle(number, made.random.randrange(BLOCKS))
                changes += 1
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
    return changes


async def run_chaos(seed: int) -> list[str]:
    faults: list[str] = []
    async with asyncio.timeout(SECONDS * 4 + 60), cluster(seed, workers=WORKERS, parts=2) as made:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + SECONDS
        names = sorted(FAULTS)
        while loop.time() < ends_at:
            if not names:
                names = sorted(FAULTS)
            faults.append(names.pop(made.random.randrange(len(names))))
            await work(made, FAULT_SECONDS - 0.5)
            await inject(made, faults[-1])
            await work(made, 0.5)
            try:
                await made.heal(within=HEAL_SECONDS)
            except AssertionError as error:
                raise AssertionError(f"{error} after {faults}") from error
        await eventually(made.has_files, within=FILE_SECONDS, what=f"the index has the model files after {faults}")
    return faults


@pytest.mark.timeout(400)
def test_the_mirrors_equal_the_workers_after_every_fault(capfd: pytest.CaptureFixture[str]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        faults = asyncio.run(run_chaos(SEED))
        assert len(faults) >= 2
    except BaseException:
        with capfd.disabled():
            print(f"\nrepeat with WARMROUTE_CHAOS_SEED={SEED}")
        raise
    finally:
        logging.disable(logging.NOTSET)
