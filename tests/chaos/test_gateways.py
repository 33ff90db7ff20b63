"""Two gateways under clients that leave and engines that fail and are killed; then one gateway is killed. Whatever
happened, the other's counters end at exactly zero.

WARMROUTE_CHAOS_SEED and WARMROUTE_CHAOS_SECONDS repeat or lengthen a run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from pathlib import Path

import pytest

from gateway.http.outcome import Outcome
from gateway.routing.router import PoolRouter
from tests.chaos.fleet import Fleet, fleet
from tests.gateway.http.support import run
from tests.support import eventually

SEED = int(os.environ.get("WARMROUTE_CHAOS_SEED", "0")) or random.randrange(1, 1 << 31)
SECONDS = float(os.environ.get("WARMROUTE_CHAOS_SECONDS", "12"))


async def trouble(made: Fleet, seconds: float) -> None:
    """Kill an engine, let it be away for a moment, start it again; and so on."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while loop.time() < ends_at:
        engine = made.random.choice(made.engines)
        await asyncio.sleep(made.random.uniform(0.2, 0.8))
        await engine.kill()
        await asyncio.sleep(made.random.uniform(0.1, 0.6))
        await engine.start()


async def watch(router: PoolRouter, most: dict[str, int]) -> None:
    """Note the most that was booked, and that nothing ever is below zero."""
    reservations = router.state.reservations
    while True:
        for sums in (reservations._own, reservations._everywhere):
            assert all(each.requests >= 0 and each.pending_tokens >= 0 for each in sums.values())
        own = sum(each.requests for each in reservations._own.values())
        everywhere = sum(each.requests for each in reservations._everywhere.values())
        most["own"], most["others"] = max(most["own"], own), max(most["others"], everywhere - own)
        most["predicted"] = max(most["predicted"], router.state.predictions.keys)
        most["told"] = max(most["told"], router.state.peers.predicted.keys)
        await asyncio.sleep(0.005)


def is_idle(router: PoolRouter) -> bool:
    reservations, peers = router.state.reservations, router.state.peers
    return (
        reservations._own == reservations._everywhere == reservations._recent == {}
        and router.state.predictions.keys == peers.predicted.keys == 0
        and router.state.predictions._holders == router.state.predictions._order == {}
        and peers._reported == peers._to_report == {}
        and peers.gateways == 0
    )


def test_after_aborts_retries_and_kills_of_engines_and_of_a_gateway_every_counter_is_zero(
    redis_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with fleet(redis_url, tmp_path, random.Random(SEED)) as made:
            router = next(iter(made.survivor.pools.values())).router
            most = dict.fromkeys(("own", "others", "predicted", "told"), 0)
            watching = asyncio.get_running_loop().create_task(watch(router, most))
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(made.load(SECONDS))
                    tasks.create_task(trouble(made, SECONDS - 1))
                    await asyncio.sleep(SECONDS * 0.6)
                    assert made.victim.returncode is None
                    made.victim.kill()
                assert not watching.done(), watching.exception()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            # It was what it claims to be: both gateways served, knew each other's requests, and everything went wrong.
            assert min(most.values()) > 0, most
            seen = {outcome for _, outcome in made.clients}
            assert seen == {"survivor", "victim"}
            assert made.clients["200", "survivor"] > 50
            assert made.clients["left", "survivor"] > 0
            assert made.clients["refused", "victim"] > 0
            ended = made.samples("gateway_worker_requests_total")
            assert {outcome for outcome, _ in ended} == set(Outcome), ended
            assert (made.gauge("gateway_retries_total") or 0) > 0
            # And nothing of it is left: not of those who left, not of the gateway that is gone.
            await eventually(lambda: is_idle(router), within=10, what=f"all counters are zero, seed {SEED}")
            for name in ("gateway_in_flight_requests", "gateway_pending_tokens"):
                gauges = made.samples(name)
                assert len(gauges) == len(made.engines)
                assert set(gauges.values()) == {0.0}
            assert made.gauge("mirror_predicted_keys") == 0
            assert made.gauge("gateway_flight_gateways") == 0
            assert made.gauge("gateway_flight_shared") == 1
            assert made.gauge("gateway_flight_received_total", outcome="malformed") is None

    logging.disable(logging.CRITICAL)
    try:
        run(scenario(), within=SECONDS * 3 + 90)
    except BaseException:
        with capfd.disabled():
            print(f"\nrepeat with WARMROUTE_CHAOS_SEED={SEED}")
        raise
    finally:
        logging.disable(logging.NOTSET)
