"""The whole simulation: nothing is lost, runs repeat themselves, and routing does what it is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.replay.figures import Figures, mean_figures
from gateway.replay.machine import MACHINES
from gateway.replay.settings import PolicySetting, ReplaySettings
from gateway.replay.simulation import Simulation
from gateway.replay.trace import Trace, infinite_cache_hit_rate
from gateway.routing.policies.registry import POLICIES
from tests.gateway.replay.traces import burst_trace, closed_trace, open_trace

SMALL = replace(MACHINES["8b"], cache_tokens=100_000)
SETTINGS = ReplaySettings(workers=4, machine=SMALL)
WARM = PolicySetting("warm", "warm")


def run(trace: Trace, policy: PolicySetting = WARM, settings: ReplaySettings = SETTINGS) -> Figures:
    return Simulation(trace, policy, settings).run()


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_ends_and_every_counter_returns_to_zero(name) -> None:
    trace = open_trace()
    simulation = Simulation(trace, PolicySetting(name, name), replace(SETTINGS, gateways=2))
    found = simulation.run()
    assert found.requests == len(simulation.jobs) == len(trace)
    assert {id(job.request) for job in simulation.jobs} == {id(request) for request in trace.requests}
    assert all(job.arrived_at < job.first_byte_at <= job.ended_at for job in simulation.jobs)
    for gateway in simulation.gateways:
        assert gateway.router.state.reservations.workers == frozenset()
        gateway.router.state.predictions.expire(simulation.events.now + 10)
        assert gateway.router.state.predictions.keys == 0
    for worker in simulation.workers.values():
        assert worker.cache.use == 0
        worker.cache.check()
    assert 0 <= found.hit_rate <= infinite_cache_hit_rate(trace) + 1e-9


def test_equal_seeds_repeat_and_others_differ() -> None:
    trace = open_trace()
    assert run(trace) == run(trace)
    drawn = PolicySetting("power_of_two", "power_of_two")
    assert run(trace, drawn) != run(trace, drawn, replace(SETTINGS, seed=1))


def test_a_trace_serves_many_runs_unchanged() -> None:
    trace = open_trace(50)
    before = [(request.at, request.prompt_tokens, list(request.keys)) for request in trace.requests]
    run(trace)
    assert [(request.at, request.prompt_tokens, request.keys) for request in trace.requests] == before


def test_cache_aware_routing_finds_more_and_answers_sooner() -> None:
    trace = open_trace(1500, tenants=100, rate=55.0)
    found = {name: run(trace, PolicySetting(name, name)) for name in ("warm", "round_robin", "least_requests")}
    assert found["warm"].hit_rate > 2 * found["round_robin"].hit_rate
    assert found["warm"].ttft_mean < 0.5 * min(found[name].ttft_mean for name in ("round_robin", "least_requests"))


def test_load_blind_affinity_overloads_a_worker() -> None:
    trace = open_trace(600, tenants=1, rate=150.0)
    blind, warm = run(trace, PolicySetting("prefix_only", "prefix_only")), run(trace)
    assert blind.imbalance > 3
    assert warm.imbalance < 1.5
    assert warm.ttft_mean < 0.2 * blind.ttft_mean


def test_sessions_run_closed_until_no_new_one_can_begin() -> None:
    trace = closed_trace(sessions=12, turns=4)
    simulation = Simulation(trace, WARM, replace(SETTINGS, sessions=3))
    found = simulation.run()
    # The last sessions are cut off when the first of them ends.
    assert 10 * 4 <= found.requests <= 12 * 4
    assert found.hit_rate > 0.5
    by_session = sorted(simulation.jobs, key=lambda job: job.arrived_at)
    for job in by_session:
        following = job.request.following
        later = [other for other in by_session if other.request is following]
        for other in later:
            assert other.arrived_at == pytest.approx(job.ended_at + other.request.think_seconds)


def test_a_burst_of_one_new_prompt_over_eight_gateways_meets_on_few_workers() -> None:
    settings = ReplaySettings(workers=8, machine=SMALL, gateways=8)
    shared = run(burst_trace(), settings=settings)
    assert shared.hit_rate >= 0.8


def test_eight_gateways_that_share_do_about_as_well_as_one() -> None:
    trace = open_trace(2000, tenants=100, rate=55.0)
    one = run(trace)
    shared = run(trace, settings=replace(SETTINGS, gateways=8))
    alone = run(trace, settings=replace(SETTINGS, gateways=8, shared=False))
    assert shared.ttft_mean <= 1.3 * one.ttft_mean
    assert shared.ttft_mean < alone.ttft_mean


def test_without_events_routing_guesses_and_still_beats_none() -> None:
    trace = open_trace(1500, tenants=100, rate=55.0)
    guessed = Simulation(trace, WARM, replace(SETTINGS, publishes_events=False))
    found = guessed.run()
    (gateway,) = guessed.gateways
    assert gateway.router.census.current().approximate == 4
    assert found.hit_rate > 1.5 * run(trace, PolicySetting("round_robin", "round_robin")).hit_rate


def test_rates_are_learned_and_slow_workers_get_less() -> None:
    trace = open_trace(1500, tenants=12, rate=20.0)
    settings = replace(SETTINGS, slow_workers=1, slow_factor=6.0)
    learned, in_tokens = (
        Simulation(trace, WARM, settings),
        Simulation(trace, PolicySetting("warm:tokens", "warm", in_tokens=True), settings),
    )
    assert learned.run().ttft_mean < in_tokens.run().ttft_mean
    rates = learned.gateways[0].router.state.rates
    slow, normal = rates.rate("worker-00"), rates.rate("worker-01")
    assert slow is not None
    assert normal is not None
    assert slow.per_token == pytest.approx(6 * normal.per_token, rel=0.3)


def test_requests_that_fit_no_cache_are_counted_and_left_out() -> None:
    trace = open_trace(20)
    settings = replace(SETTINGS, machine=replace(SMALL, cache_tokens=2600))
    found = run(trace, settings=settings)
    assert found.refused > 0
    assert found.requests + found.refused == 20
    with pytest.raises(ValueError, match="no request was finished"):
        run(trace, settings=replace(SETTINGS, machine=replace(SMALL, cache_tokens=1024)))


def test_progress_is_told_up_to_the_end() -> None:
    told = []
    Simulation(open_trace(200), WARM, SETTINGS).run(lambda done, total: told.append((done, total)))
    assert told[-1] == (200, 200)
    assert len(told) > 50


def test_means_of_runs() -> None:
    runs = [run(open_trace(50), settings=replace(SETTINGS, seed=seed)) for seed in range(2)]
    mean = mean_figures(runs)
    assert mean.ttft_mean == pytest.approx((runs[0].ttft_mean + runs[1].ttft_mean) / 2)
    assert mean.requests == 50
