"""No worker becomes a hot spot, and no cache thrashes, where the cost's prices are measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.replay.hot_spots import WORKLOADS
from gateway.replay.figures import Figures
from gateway.replay.settings import PolicySetting, ReplaySettings
from gateway.replay.simulation import Simulation
from gateway.replay.trace import infinite_cache_hit_rate
from warmroute.config.pool import Weights

WARM = PolicySetting("warm", "warm")
DEAR = PolicySetting("warm:g=3", "warm", Weights(g=3))
FREE = PolicySetting("warm:g=0", "warm", Weights(g=0))


def run(name: str, load: float, policy: PolicySetting, *, seconds: float = 40.0, gateways: int = 1) -> Figures:
    workload = WORKLOADS[name]
    short = replace(workload, traffic=replace(workload.traffic, seconds=seconds))
    settings = ReplaySettings(machine=workload.machine, slow_workers=workload.slow_workers, gateways=gateways)
    return Simulation(short.trace(load), policy, settings).run()


@pytest.mark.parametrize("name", ["hot_tenant", "shift"])
def test_a_hot_tenant_spreads_before_its_worker_is_out_of_slots(name: str) -> None:
    """At a price of 3 for each token evicted, though there is room, it has four times its share."""
    found, hot = run(name, 0.6, WARM), run(name, 0.6, DEAR)
    assert found.ttft_mean < 0.4 * hot.ttft_mean
    assert found.ttft_p90 < 0.3
    assert found.hit_rate > 0.94


def test_a_pool_at_the_edge_of_its_room_does_not_thrash() -> None:
    """At a price of 0 it falls into a state in which the caches hold copies and every second token is computed."""
    found, thrashing = run("tight_cache", 0.7, WARM), run("tight_cache", 0.7, FREE)
    assert found.hit_rate > 0.93
    assert found.ttft_mean < 0.2
    assert thrashing.ttft_mean > 3 * found.ttft_mean


def test_eight_gateways_are_about_as_good_as_one() -> None:
    one, eight = run("hot_tenant", 0.6, WARM), run("hot_tenant", 0.6, WARM, gateways=8)
    assert eight.ttft_mean < 2 * one.ttft_mean
    assert eight.hit_rate > one.hit_rate - 0.02


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_follows_from_its_seed_and_asks_more_under_more_load(name: str) -> None:
    workload = WORKLOADS[name]
    short = replace(workload, traffic=replace(workload.traffic, seconds=10.0))
    low, again, high = short.trace(0.3), short.trace(0.3), short.trace(0.9)
    assert list(low.all_requests()) == list(again.all_requests())
    assert len(high) > 1.5 * len(low)
    assert 0 < infinite_cache_hit_rate(high) < 1
