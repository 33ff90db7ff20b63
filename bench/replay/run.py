"""`python -m bench replay`: every policy over every workload, means over several seeds, one JSON object at the end."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Final, TypeVar

from bench.replay.hot_spots import WORKLOADS
from bench.replay.toolmix import toolmix
from gateway.replay.figures import Figures, mean_figures
from gateway.replay.machine import MACHINES
from gateway.replay.read import TraceError, read_trace
from gateway.replay.settings import PolicySetting, ReplaySettings
from gateway.replay.simulation import Simulation
from gateway.replay.trace import Trace, TraceRequest, infinite_cache_hit_rate
from warmroute.config.pool import Weights

Item = TypeVar("Item")
HERE: Final = Path(__file__).parent.parent / "data" / "mooncake_conversation_2000.jsonl.gz"
CONTEXT_LIMIT: Final = 120_000
AGENTS_CONTEXT_LIMIT: Final = 128_000
FILES: Final = {
    "conversation": "mooncake_conversation_trace.jsonl.gz",
    "synthetic": "mooncake_synthetic_trace.jsonl.gz",
    "agents": "weka_claude_code_sessions.jsonl.gz",
}
POLICIES: Final = (
    PolicySetting("warm", "warm"),
    PolicySetting("warm:tokens", "warm", in_tokens=True),
    PolicySetting("warm:context=1", "warm", Weights(context=1)),
    PolicySetting("warm:g=3", "warm", Weights(g=3)),
    PolicySetting("lmetric", "lmetric"),
    PolicySetting("consistent_hash", "consistent_hash"),
    PolicySetting("prefix_only", "prefix_only"),
    PolicySetting("least_requests", "least_requests"),
    PolicySetting("power_of_two", "power_of_two"),
    PolicySetting("round_robin", "round_robin"),
)
LOADS: Final = (60, 90)
OURS: Final = ("warm", "warm:tokens", "warm:context=1", "warm:g=3")


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace and how it is run."""

    name: str
    trace: Callable[[], Trace]
    settings: ReplaySettings


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench replay", description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        help=f"folder with {', '.join(FILES.values())}; without it, the ten minutes of conversation in bench/data",
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of each policy (default: 5)")
    parser.add_argument("--policies", default="", help="labels with commas between; all when left out")
    parser.add_argument("--workloads", default="", help="names with commas between; all when left out")
    options = parser.parse_args(argv)
    workloads = _chosen(_workloads(options.data), options.workloads, lambda workload: workload.name)
    policies = _chosen(POLICIES, options.policies, lambda policy: policy.label)
    found: dict[str, dict[str, Figures]] = {}
    try:
        for workload in workloads:
            found[workload.name] = _run(workload, policies, options.seeds)
        gateways = _gateways(workloads, found, options.seeds)
    except TraceError as error:
        print(f"bench replay: {error}", file=sys.stderr)
        return 2
    burst = fmean(_burst(seed).hit_rate for seed in range(options.seeds))
    print(f"\nburst of one new prompt over 8 gateways: hit {burst:.2f}")
    print(json.dumps(_summary(found, gateways, burst)))
    return 0


def _chosen(items: Sequence[Item], wanted: str, name: Callable[[Item], str]) -> list[Item]:
    names = wanted.split(",") if wanted else [name(item) for item in items]
    return [item for item in items if name(item) in names]


def _workloads(data: Path | None) -> list[Workload]:
    if data is None:
        read = partial(read_trace, HERE, context_limit=CONTEXT_LIMIT)
        return [Workload("conversation x3", read, ReplaySettings(speed=3)), *_hot_spots()]

    @cache
    def trace(name: str) -> Trace:
        limit = AGENTS_CONTEXT_LIMIT if name == "agents" else CONTEXT_LIMIT
        return (
            toolmix(trace("conversation")) if name == "toolmix" else read_trace(data / FILES[name], context_limit=limit)
        )

    return [
        Workload("conversation x3", partial(trace, "conversation"), ReplaySettings(speed=3)),
        Workload("conversation x3.5", partial(trace, "conversation"), ReplaySettings(speed=3.5)),
        Workload("toolmix x3.5", partial(trace, "toolmix"), ReplaySettings(speed=3.5)),
        Workload("synthetic x2.5", partial(trace, "synthetic"), ReplaySettings(speed=2.5)),
        Workload("agents", partial(trace, "agents"), ReplaySettings(machine=MACHINES["moe"], sessions=200)),
        *_hot_spots(),
    ]


def _hot_spots() -> list[Workload]:
    """Each of `hot_spots` at 60 and at 90 % of what the workers can do."""
    return [
        Workload(
            f"{name}:{load}",
            partial(each.trace, load / 100),
            ReplaySettings(machine=each.machine, slow_workers=each.slow_workers),
        )
        for name, each in WORKLOADS.items()
        for load in LOADS
    ]


def _run(workload: Workload, policies: Sequence[PolicySetting], seeds: int) -> dict[str, Figures]:
    trace = workload.trace()
    print(f"\n{workload.name}: one endless cache would find {infinite_cache_hit_rate(trace):.3f}", flush=True)
    found = {}
    for policy in policies:
        runs = [Simulation(trace, policy, replace(workload.settings, seed=seed)).run() for seed in range(seeds)]
        mean = found[policy.label] = mean_figures(runs)
        means = [run.ttft_mean for run in runs]
        print(
            f"  {policy.label:16} mean {mean.ttft_mean:7.3f} s ({min(means):.3f} to {max(means):.3f})"
            f"  p50 {mean.ttft_p50:6.3f}  p90 {mean.ttft_p90:7.3f}  p99 {mean.ttft_p99:7.3f}"
            f"  hit {mean.hit_rate:.3f}  imbalance {mean.imbalance:.2f}",
            flush=True,
        )
    return found


def _gateways(
    workloads: Sequence[Workload], found: Mapping[str, Mapping[str, Figures]], seeds: int
) -> dict[str, dict[str, float]]:
    """The default policy's mean time to first token over 1 gateway, as found, and 8, which share or do not."""
    default = POLICIES[0]
    rows = {}
    for workload in workloads:
        if default.label not in found[workload.name]:
            continue
        trace, means = workload.trace(), {"one": found[workload.name][default.label].ttft_mean}
        for name, shared in (("shared", True), ("unshared", False)):
            settings = replace(workload.settings, gateways=8, shared=shared)
            runs = [Simulation(trace, default, replace(settings, seed=seed)).run() for seed in range(seeds)]
            means[name] = fmean(run.ttft_mean for run in runs)
        rows[workload.name] = means
        print(
            f"\n{workload.name}: one gateway {means['one']:.3f} s, eight that share {means['shared']:.3f}, "
            f"eight that do not {means['unshared']:.3f}",
            flush=True,
        )
    return rows


def _burst(seed: int) -> Figures:
    """200 requests within ten seconds, all with one new prompt of 6,000 tokens, over 8 gateways and 8 workers."""
    block = 64
    keys = list(range(1, 6000 // block + 1))
    requests = [TraceRequest(number / 20, 6030, 100, keys) for number in range(200)]
    return Simulation(Trace("burst", block, requests), POLICIES[0], ReplaySettings(gateways=8, seed=seed)).run()


def _summary(
    found: Mapping[str, Mapping[str, Figures]], gateways: Mapping[str, Mapping[str, float]], burst: float
) -> dict[str, object]:
    """Figures by workload; for ours also the mean over the best of the others in the same run."""
    ratios = {}
    for label in OURS:
        others = {
            workload: min(each.ttft_mean for name, each in by_policy.items() if name not in OURS)
            for workload, by_policy in found.items()
            if label in by_policy and set(by_policy) - set(OURS)
        }
        ratios[label] = {
            workload: round(found[workload][label].ttft_mean / best, 3) for workload, best in others.items()
        }
    return {
        "policies": {
            workload: {label: each.to_json() for label, each in by_policy.items()}
            for workload, by_policy in found.items()
        },
        "ttft_mean_over_best_other": ratios,
        "gateways_ttft_mean": gateways,
        "burst_hit_rate": round(burst, 4),
    }
