"""`warmroute replay`: a trace through simulated workers, once for each policy, and the figures side by side."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.replay.figures import Figures, mean_figures
from gateway.replay.machine import MACHINES, Machine
from gateway.replay.plot import PlotError, plot
from gateway.replay.read import TraceError, read_trace
from gateway.replay.settings import PolicySetting, ReplaySettings
from gateway.replay.simulation import Simulation
from gateway.replay.trace import Trace, infinite_cache_hit_rate
from gateway.routing.policies.registry import POLICIES
from warmroute.config.pool import Weights
from warmroute.config.replay import ReplayConfig
from warmroute.process.lifecycle import StartupError

LONGEST_SECONDS: Final = 31 * 86_400.0
"""Of a replay: time without requests takes time too, since workers report their load."""
BAR_CELLS: Final = 30
BAR_SECONDS: Final = 0.1
"""Least time between two drawings of the bar."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One policy's figures over all runs, and its times to first token, sorted."""

    figures: Figures
    times: Sequence[float]


def run(config: ReplayConfig, path: Path, *, as_json: bool, plot_path: Path | None) -> int:
    """Replay, print, and plot where `plot_path` is given. Raises StartupError for what cannot be run."""
    policies = [parse_policy(text) for text in config.policy]
    if len({policy.label for policy in policies}) < len(policies):
        raise StartupError(f"replay.policy: {','.join(config.policy)} names one twice; name each once")
    settings = deployment(config)
    try:
        trace = read_trace(path, context_limit=config.context_limit)
    except TraceError as error:
        raise StartupError(str(error)) from error
    if trace.seconds > LONGEST_SECONDS * config.speed:
        raise StartupError(
            f"{path}: its requests span {trace.seconds / 86_400:.3g} days, at {config.speed:g} times their speed more "
            f"than the {LONGEST_SECONDS / 86_400:g} that are replayed; raise replay.speed, or replay a part of the file"
        )
    bound = infinite_cache_hit_rate(trace)
    results = [_replay(trace, policy, settings, config.runs) for policy in policies]
    figures = [result.figures for result in results]
    if as_json:
        print(json.dumps(_as_json(trace, bound, config, figures)))
    else:
        print(table(trace, bound, config, figures))
    if plot_path is not None:
        _plot(plot_path, trace, results, bound)
    return 0


def parse_policy(text: str) -> PolicySetting:
    """A policy as it is written: its name, then `tokens` and weights, each behind a colon. Raises StartupError."""
    name, *parts = text.split(":")
    known = [policy for policy in POLICIES if policy == name]
    if not known:
        raise StartupError(f"replay.policy: {name!r} is no policy; there are: {', '.join(POLICIES)}")
    if parts and name != "warm":
        raise StartupError(f"replay.policy: {text}: only warm has weights; name {name} alone")
    weights = {}
    for part in parts:
        weight, given, value = part.partition("=")
        if given:
            weights[weight] = value
        elif part != "tokens":
            raise StartupError(f"replay.policy: {text}: {part!r} is neither tokens nor a weight, such as g=2")
    try:
        return PolicySetting(text, known[0], Weights.model_validate(weights), in_tokens="tokens" in parts)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        weights_known = ", ".join(Weights.model_fields)
        raise StartupError(
            f"replay.policy: {text}: the weight {field} is refused: {problem['msg']}; there are: {weights_known}"
        ) from error


def deployment(config: ReplayConfig) -> ReplaySettings:
    """What is simulated. Raises StartupError where it makes no sense."""
    if config.slow_workers > config.workers:
        raise StartupError(
            f"replay.slow_workers: {config.slow_workers} of {config.workers} workers cannot be slow; give fewer"
        )
    return ReplaySettings(
        workers=config.workers,
        machine=_machine(config),
        speed=config.speed,
        sessions=config.sessions,
        gateways=config.gateways,
        shared=config.shared,
        index_lag=config.index_lag_seconds,
        report_every=config.report_seconds,
        report_lag=config.report_lag_seconds,
        slow_workers=config.slow_workers,
        slow_factor=config.slow_factor,
        publishes_events=config.events,
        seed=config.seed,
    )


def _machine(config: ReplayConfig) -> Machine:
    machine = MACHINES[config.machine]
    if config.prefill_tokens_per_second is not None:
        factor = 1 / config.prefill_tokens_per_second / machine.prefill_token
        machine = replace(
            machine, prefill_token=machine.prefill_token * factor, prefill_pair=machine.prefill_pair * factor
        )
    if config.cache_tokens is not None:
        machine = replace(machine, cache_tokens=config.cache_tokens)
    return machine


def _replay(trace: Trace, policy: PolicySetting, settings: ReplaySettings, runs: int) -> Replayed:
    figures, times = [], []
    for number in range(runs):
        label = policy.label if runs == 1 else f"{policy.label} {number + 1}/{runs}"
        simulation = Simulation(trace, policy, replace(settings, seed=settings.seed + number))
        try:
            figures.append(simulation.run(_bar(label)))
        except ValueError as error:
            raise StartupError(f"{trace.name}: {error}; give a larger replay.cache_tokens") from error
        times += [job.first_byte_at - job.arrived_at for job in simulation.jobs]
    return Replayed(mean_figures(figures), sorted(times))


def _bar(label: str) -> Callable[[int, int], None]:
    """A progress bar on stderr, where that is a terminal."""
    drawn_at = 0.0

    def draw(done: int, total: int) -> None:
        nonlocal drawn_at
        now = time.monotonic()
        if not sys.stderr.isatty() or (done < total and now - drawn_at < BAR_SECONDS):
            return
        drawn_at = now
        cells = BAR_CELLS * done // max(1, total)
        bar = "#" * cells + "." * (BAR_CELLS - cells)
        end = "\r\x1b[K" if done >= total else ""
        print(f"\r{label:24} [{bar}] {done}/{total}{end}", end="", file=sys.stderr, flush=True)

    return draw


def table(trace: Trace, bound: float, config: ReplayConfig, figures: Sequence[Figures]) -> str:
    """The figures for people; the best of each column is marked."""
    columns = (
        ("mean s", [f"{each.ttft_mean:.3f}" for each in figures], [each.ttft_mean for each in figures]),
        ("p50 s", [f"{each.ttft_p50:.3f}" for each in figures], [each.ttft_p50 for each in figures]),
        ("p90 s", [f"{each.ttft_p90:.3f}" for each in figures], [each.ttft_p90 for each in figures]),
        ("p99 s", [f"{each.ttft_p99:.3f}" for each in figures], [each.ttft_p99 for each in figures]),
        ("hit %", [f"{100 * each.hit_rate:.1f}" for each in figures], [-each.hit_rate for each in figures]),
        ("imbalance", [f"{each.imbalance:.2f}" for each in figures], [each.imbalance for each in figures]),
        ("busy %", [f"{100 * each.utilisation:.0f}" for each in figures], [each.utilisation for each in figures]),
        (
            "ms/token",
            [f"{1000 * each.token_seconds:.1f}" for each in figures],
            [each.token_seconds for each in figures],
        ),
    )
    width = max(len("policy"), *(len(each.policy) for each in figures))
    lines = [f"{'policy':{width}}" + "".join(f" {name:>10}" for name, _, _ in columns)]
    for row, each in enumerate(figures):
        cells = [
            cells[row] + ("*" if values[row] == min(values) and len(figures) > 1 else " ")
            for _, cells, values in columns
        ]
        lines.append(f"{each.policy:{width}}" + "".join(f" {cell:>10}" for cell in cells))
    lines += [
        "",
        _described(trace, config, figures),
        f"One endless cache would find {100 * bound:.1f} % of the tokens.",
    ]
    if trace.left_out:
        lines.append(f"{trace.left_out} requests of more than {config.context_limit} tokens were left out.")
    if trace.damaged:
        lines.append(f"Lines left out since they are cut off or damaged: {trace.damaged}.")
    if refused := figures[0].refused:
        lines.append(f"{refused} requests fit no worker's cache and were left out.")
    return "\n".join(lines)


def _described(trace: Trace, config: ReplayConfig, figures: Sequence[Figures]) -> str:
    load = f"{config.sessions} sessions at a time" if trace.closed else f"{config.speed:g} times as fast as recorded"
    gateways = "" if config.gateways == 1 else f", {config.gateways} gateways {'' if config.shared else 'not '}sharing"
    runs = "" if config.runs == 1 else f"; means of {config.runs} runs"
    return (
        f"{trace.name}: {figures[0].requests} requests, {load}, over {config.workers} workers ({config.machine})"
        f"{gateways}{runs}. Time to first token in seconds; * is the best."
    )


def _as_json(trace: Trace, bound: float, config: ReplayConfig, figures: Sequence[Figures]) -> dict[str, object]:
    return {
        "trace": trace.name,
        "infinite_cache_hit_rate": round(bound, 6),
        "left_out": trace.left_out,
        "damaged": trace.damaged,
        "settings": config.model_dump(mode="json"),
        "machine": asdict(_machine(config)),
        "policies": [each.to_json() for each in figures],
    }


def _plot(path: Path, trace: Trace, results: Sequence[Replayed], bound: float) -> None:
    times = {result.figures.policy: result.times for result in results}
    try:
        plot(path, trace.name, [result.figures for result in results], times, bound)
    except PlotError as error:
        raise StartupError(str(error)) from error
    print(f"wrote {path}", file=sys.stderr)
