"""The command: starts everything, runs each workload through one gateway after another, prints tables and one JSON
object as its last line.

    python -m bench.routing_live [--seed 1] [--quick] [--policies warm,round_robin,least_requests] [--peer CMD]

Eight simulated engines with the production scheduler, block pool and publisher; a Valkey server, an indexer and a
gateway as they are deployed. Every policy gets the same chats at the same times and engines with empty caches. Hits are
those of the replies' usage, times those that clients see.

Figures are of one machine for clients, engines and gateway together: a machine too busy for them shows in `engines
late`, and then in all times.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import uvloop

from bench.index.processes import ProcessDiedError
from bench.index.report import Report
from bench.relay.exact import model_folder
from bench.routing_live.clients import drive
from bench.routing_live.cluster import Cluster, Front
from bench.routing_live.figures import Figures, endless_hit, figures
from bench.routing_live.workloads import RECIPES, Scale, Workload
from gateway.process.compiled import description
from gateway.routing.policies.registry import POLICIES

OURS = "warm"
BASELINES = ("least_requests", "round_robin")
PEER = "peer"
HOT_HIT_GOAL = 0.92
BURST_HIT_GOAL = 0.80
FASTER_GOAL = 3.0
DECISION_100_GOAL_US = 60.0
DECISION_2000_GOAL_US = 10_000.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """`idle_seconds`: how long a gateway without requests is watched, for what it takes then."""

    engines: int
    scale: Scale
    idle_seconds: float


FULL = Sizes(engines=8, scale=Scale(seconds=15.0), idle_seconds=3.0)
QUICK = Sizes(engines=3, scale=Scale(seconds=1.0, load=0.4, think=0.1, turns=2), idle_seconds=0.3)

Results = dict[str, dict[str, Figures]]
"""By workload and by gateway, in the order of the run."""


def measure(
    cluster: Cluster,
    policies: Sequence[str],
    peer: str | None,
    workloads: Sequence[Workload],
    idle_seconds: float,
    report: Report,
) -> tuple[Results, dict[str, float], float]:
    """The figures, the hit rate of one endless cache by workload, and the latest that an engine's step ended."""
    results: Results = {workload.name: {} for workload in workloads}
    endless: dict[str, float] = {}
    late_seconds = 0.0
    fronts: list[tuple[str, AbstractContextManager[Front]]] = [(name, cluster.gateway(name)) for name in policies]
    if peer is not None:
        fronts.append((PEER, cluster.peer(peer)))
    for name, starting in fronts:
        with starting as front:
            idle = front.cpu_seconds()
            time.sleep(idle_seconds)
            idle = (front.cpu_seconds() - idle) / idle_seconds
            report.figures[f"{name}.idle_cpu_ms_per_s"] = round(idle * 1e3, 2)
            for workload in workloads:
                report.progress(f"{name}: {workload.name}, {workload.requests} requests")
                cluster.start_over(workload.cache_tokens, workload.running_requests)
                before = front.cpu_seconds()
                replies = uvloop.run(drive(front.port, workload))
                cpu_seconds = front.cpu_seconds() - before - idle * replies.seconds
                results[workload.name][name] = figures(replies, engines=cluster.engines, cpu_seconds=cpu_seconds)
                endless.setdefault(workload.name, endless_hit(replies.answers))
                late_seconds = max(late_seconds, cluster.late_seconds())
            for reason, count in front.unkeyed().items():
                report.figures[f"unkeyed.{name}.{reason}"] = count
    return results, endless, late_seconds


def print_table(workload: Workload, found: dict[str, Figures], endless: float) -> None:
    """One workload's figures, a gateway a line."""
    print(f"\n{workload.name}: {workload.about}; {workload.requests} requests")
    print(f"  one endless cache for all engines would hit {endless:.1%}")
    print(
        f"  {'':<16}{'hit':>7}{'TTFT mean':>11}{'p50':>8}{'p90':>8}{'p99':>8}{'imbalance':>11}{'CPU us':>8}{'req/s':>7}"
    )
    for name, of in found.items():
        failed = f"   {of.failed} FAILED" if of.failed else ""
        print(
            f"  {name:<16}{of.hit:>7.1%}{of.ttft_mean_ms:>8.0f} ms{of.ttft_p50_ms:>8.0f}{of.ttft_p90_ms:>8.0f}"
            f"{of.ttft_p99_ms:>8.0f}{of.imbalance:>11.2f}{of.cpu_us:>8.0f}{of.requests_per_second:>7.1f}{failed}",
            flush=True,
        )


def note_figures(report: Report, results: Results, endless: dict[str, float]) -> None:
    """All figures for programs: WORKLOAD.POLICY.FIGURE; those of the first policy are WORKLOAD.FIGURE too."""
    for workload, found in results.items():
        report.figures[f"{workload}.endless_hit"] = round(endless[workload], 4)
        for place, (name, of) in enumerate(found.items()):
            for figure, value in asdict(of).items():
                report.figures[f"{workload}.{name}.{figure}"] = round(value, 4)
                if place == 0:
                    report.figures[f"{workload}.{figure}"] = round(value, 4)
        ours = next(iter(found.values()))
        for name, of in list(found.items())[1:]:
            for figure in ("ttft_mean", "ttft_p90"):
                # Ours over the other's, as in the other benches: the less the better.
                ratio = getattr(ours, f"{figure}_ms") / getattr(of, f"{figure}_ms")
                report.figures[f"{workload}.{figure}_over_{name}"] = round(ratio, 4)


def judge(report: Report, results: Results) -> None:
    """The figures that have goals, if this run has them."""
    report.heading("goals")
    hot, burst = results.get("hot_tenant", {}), results.get("burst", {})
    if OURS in hot:
        report.add("hot_tenant.hit", hot[OURS].hit, "hot tenant: hit rate", at_least=HOT_HIT_GOAL)
        for name in [name for name in BASELINES if name in hot]:
            for figure in ("ttft_mean", "ttft_p90"):
                ours, theirs = (getattr(of, f"{figure}_ms") for of in (hot[OURS], hot[name]))
                report.add(
                    f"hot_tenant.{name}_{figure}_over_ours",
                    theirs / ours,
                    f"hot tenant: {figure} of {name} over ours",
                    at_least=FASTER_GOAL,
                )
    if OURS in burst:
        report.add("burst.hit", burst[OURS].hit, "burst of a new prompt: hit rate", at_least=BURST_HIT_GOAL)


def judge_decision(report: Report) -> None:
    """What a decision costs, without a network."""
    from bench.decision import WORKERS
    from bench.decision import measure as measure_decision

    report.progress("decisions")
    costs = measure_decision(rounds_by_workers=WORKERS if report.judged else dict.fromkeys(WORKERS, 1))
    name = "decision_100_workers_us"
    text = "a decision, 100 workers, prompt of 128 index blocks"
    report.add(name, costs[name], text, unit=" us", at_most=DECISION_100_GOAL_US)
    name = "decision_2000_workers_us"
    report.add(name, costs[name], "the same, 2,000 workers", unit=" us", at_most=DECISION_2000_GOAL_US)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    arguments = _parser().parse_args(argv)
    model = model_folder()
    if model is None:
        return 1
    sizes = QUICK if arguments.quick else FULL
    names = arguments.only or list(RECIPES)
    workloads = [RECIPES[name].workload(name, arguments.seed, sizes.scale) for name in names]
    report = Report(judged=not arguments.quick)
    started_at = time.monotonic()
    report.note("bench", "routing_live")
    report.figures["seed"] = arguments.seed
    report.note("quick", arguments.quick)
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # all processes end as on Ctrl-C
    try:
        with Cluster(sizes.engines, model) as cluster:
            results, endless, late_seconds = measure(
                cluster, arguments.policies, arguments.peer, workloads, sizes.idle_seconds, report
            )
    except KeyboardInterrupt:
        return 130
    except (ProcessDiedError, TimeoutError, ValueError) as error:
        print(f"bench.routing_live: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)
    for workload in workloads:
        print_table(workload, results[workload.name], endless[workload.name])
    note_figures(report, results, endless)
    judge(report, results)
    judge_decision(report)
    report.figures["engines_late_ms"] = round(late_seconds * 1e3, 1)
    unkeyed = {name: count for name, count in report.figures.items() if name.startswith("unkeyed.")}
    print(f"\nrequests that were routed without, or by wrong keys: {unkeyed or 'none'}")
    took = time.monotonic() - started_at
    print(f"{sizes.engines} engines, late by {late_seconds * 1e3:.0f} ms at most; the gateway ran as {description()}")
    print(f"took {took:.0f} s; seed {arguments.seed}")
    print(report.to_json(), flush=True)
    return 0


def _policies(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no policy {', '.join(unknown)}; there are: {', '.join(POLICIES)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.routing_live",
        description="Policies in the real gateway, in front of simulated engines: hit rate, time to first token, CPU.",
        epilog="Example: python -m bench.routing_live --seed 3 --only burst --peer "
        "'vllm-router --policy cache_aware --port {port} --worker-urls {workers}'",
    )
    add = parser.add_argument
    add("--seed", type=int, default=1, help="of chats and their times (default 1)")
    add("--quick", action="store_true", help="small sizes, to see that it works; the figures mean little")
    add("--only", action="append", choices=RECIPES, help="one workload; may be given several times")
    add(
        "--policies",
        type=_policies,
        default=[OURS, "round_robin", "least_requests"],
        help="of our gateway, with commas between; ratios are those of the first over the others",
    )
    add("--peer", metavar="CMD", help="another gateway: a shell command with {port} and {workers} (URLs) in it")
    return parser
