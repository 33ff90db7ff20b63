"""The command: starts everything, does one fault after another under load, prints a table and one JSON object as its
last line.

    python -m bench.chaos [--seed 1] [--quick] [--only redis] [--only stop] [--only worker/kill]

Two gateways, an indexer and a Valkey server as they are deployed, two workers with the production publisher, and an
engine with `warmroute agent`; none of them has a model. With WARMROUTE_TEST_MINIAPI and etcd an API server, too, by
which the gateways find a further worker. Proxies are on the ways. Each fault lasts for some seconds; a
part that is killed stays away until all else has healed. What ends of a fault is started again after a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from bench.chaos.api_server import programs
from bench.chaos.clients import REQUESTS_PER_SECOND, Load, Tally
from bench.chaos.cluster import Cluster
from bench.chaos.faults import CELLS, FAULTS, KILL, PARTS, Cell, done, left_out
from bench.chaos.healing import Healing
from bench.relay.exact import model_folder
from gateway.process.compiled import description

START_SECONDS = 90.0
CALM_SECONDS = 1.0
"""Of load before each fault; longer than a reply takes."""
HEAL_LIMIT_SECONDS = 60.0
HEAL_GOAL_SECONDS = 15.0
QUICK_CELLS = ("gateway/kill", "worker/reset", "redis/reset", "indexer/stop")
REASONS = 3
"""Most that are printed of one cell."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """`fault_seconds`: how long each lasts."""

    fault_seconds: float


FULL = Sizes(fault_seconds=4.0)
QUICK = Sizes(fault_seconds=1.5)


@dataclass(slots=True)
class Result:
    """Of one cell. `heal_seconds`: from the fault's end, from a kill itself; `back_seconds`: after a kill, from the new
    start of what was killed. None: not within the limit, and `trouble` says what was wrong."""

    cell: Cell
    tally: Tally
    heal_seconds: float | None = None
    back_seconds: float | None = None
    restarts: int = 0
    trouble: str = ""

    @property
    def worst_seconds(self) -> float:
        """The limit where it did not heal."""
        back = self.back_seconds if self.cell.fault == KILL else 0.0
        both = (self.heal_seconds, back)
        return max(HEAL_LIMIT_SECONDS if seconds is None else seconds for seconds in both)


async def measure(cells: Sequence[Cell], sizes: Sizes, seed: int, results: list[Result]) -> None:
    """Fills `results`. Raises TimeoutError where the parts do not become ready."""
    model = await asyncio.to_thread(model_folder)
    if model is None:
        raise TimeoutError("without the built-in model's tokenizer nothing can be routed by cache")
    async with Cluster(model, programs()) as cluster:
        load = Load([f"http://{cluster.reached_at(name)}" for name in ("gateway-1", "gateway-2")], seed)
        healing = Healing(cluster, load)
        loading: asyncio.Task[None] | None = None
        try:
            if await healing.wait(time.monotonic(), START_SECONDS) is None:
                raise TimeoutError(f"not ready: {healing.trouble}\n{cluster.last_lines()}")
            loading = asyncio.get_running_loop().create_task(load.run())
            for cell in cells:
                result = Result(cell, Tally())
                results.append(result)
                load.tally = result.tally  # those under way when the fault begins count to it
                await asyncio.sleep(CALM_SECONDS)
                await _one(cluster, load, healing, result, sizes)
                _progress(result)
                if result.trouble and await healing.wait(time.monotonic(), START_SECONDS) is None:
                    print(f"bench.chaos: no further cell: {healing.trouble}", file=sys.stderr)
                    print(cluster.last_lines(), file=sys.stderr)
                    break
            load.tally = Tally()
            await load.settle()
        finally:
            if loading is not None:
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)


async def _one(cluster: Cluster, load: Load, healing: Healing, result: Result, sizes: Sizes) -> None:
    """One cell, healed at its end if it does."""
    restarts, killed = cluster.restarts, result.cell.fault == KILL
    async with done(cluster, result.cell):
        began = time.monotonic()
        load.turn()
        if killed:
            result.heal_seconds = await healing.wait(began, HEAL_LIMIT_SECONDS)
            result.trouble = "" if result.heal_seconds is not None else healing.trouble
        await asyncio.sleep(max(0.0, began + sizes.fault_seconds - time.monotonic()))
    if killed:
        cluster.start_again(PARTS[result.cell.part])
    seconds = await healing.wait(time.monotonic(), HEAL_LIMIT_SECONDS)
    if killed:
        result.back_seconds = seconds
    else:
        result.heal_seconds = seconds
    if seconds is None:
        result.trouble = healing.trouble
    result.restarts = cluster.restarts - restarts


# --- what is printed -------------------------------------------------------------------------------------------------


def _progress(result: Result) -> None:
    tally = result.tally
    trouble = f"; NOT HEALED: {result.trouble}" if result.trouble else ""
    text = f"{result.cell.name}: {_seconds(result.heal_seconds)}, lost {tally.lost}, broken {tally.broken}{trouble}"
    print(f"... {text}", file=sys.stderr, flush=True)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def print_table(results: Sequence[Result]) -> None:
    """A cell a line, then why requests were lost or broke, then what was left out."""
    print(
        f"\n{'part/fault':<24}{'asked':>6}{'lost':>6}{'broken':>8}{'other gw':>10}{'slowest':>9}{'healed':>9}"
        f"{'back':>8}{'restarts':>10}"
    )
    ordered = sorted(results, key=lambda result: list(PARTS).index(result.cell.part))
    for result in ordered:
        tally = result.tally
        back = _seconds(result.back_seconds) if result.cell.fault == KILL else ""
        print(
            f"{result.cell.name:<24}{tally.asked:>6}{tally.lost:>6}{tally.broken:>8}{tally.failovers:>10}"
            f"{tally.slowest:>7.1f} s{_seconds(result.heal_seconds):>9}{back:>8}{result.restarts:>10}"
        )
    for result in ordered:
        for reason, count in result.tally.reasons.most_common(REASONS):
            print(f"  {result.cell.name}: {count} {reason}")
        if result.trouble:
            print(f"  {result.cell.name}: not healed within {HEAL_LIMIT_SECONDS:.0f} s: {result.trouble}")
    print("\nleft out:")
    for name, reason in left_out(api_server=programs() is not None).items():
        print(f"  {name}: {reason}")


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """For programs."""
    missing = left_out(api_server=programs() is not None)
    worst = max(results, key=lambda result: result.worst_seconds)
    return {
        "lost": sum(result.tally.lost for result in results),
        "cells": len(results),
        "worst_heal_seconds": round(worst.worst_seconds, 2),
        "worst_cell": worst.cell.name,
        "broken_streams": sum(result.tally.broken for result in results),
        "asked": sum(result.tally.asked for result in results),
        "unhealed": [result.cell.name for result in results if result.trouble],
        "left_out": [{"cell": name, "reason": reason} for name, reason in missing.items()],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    arguments = _parser().parse_args(argv)
    if sys.platform != "linux":
        print("bench.chaos: limits of running processes (prlimit) are Linux's", file=sys.stderr)
        return 1
    chosen = arguments.only or (QUICK_CELLS if arguments.quick else ())
    missing = left_out(api_server=programs() is not None)
    wanted = [cell for cell in CELLS if not chosen or {cell.name, cell.part, cell.fault} & set(chosen)]
    cells = [cell for cell in wanted if cell.name not in missing]
    if not cells:
        for name in [*chosen, *(cell.name for cell in wanted)]:
            if name in missing:
                print(f"bench.chaos: {name} is left out: {missing[name]}", file=sys.stderr)
        return 2
    results: list[Result] = []
    started_at = time.monotonic()
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # all processes end as on Ctrl-C
    try:
        uvloop.run(measure(cells, QUICK if arguments.quick else FULL, arguments.seed, results))
    except KeyboardInterrupt:
        return 130
    except TimeoutError as error:
        print(f"bench.chaos: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)
    print_table(results)
    found = figures(results)
    goals = {
        "lost": {"bound": "at most", "goal": 0, "met": found["lost"] == 0},
        "worst_heal_seconds": {
            "bound": "at most",
            "goal": HEAL_GOAL_SECONDS,
            "met": found["worst_heal_seconds"] <= HEAL_GOAL_SECONDS,
        },
    }
    took = time.monotonic() - started_at
    print(f"\n{REQUESTS_PER_SECOND} requests a second; took {took:.0f} s; the gateways ran as {description()}")
    about = {"bench": "chaos", "seed": arguments.seed, "quick": arguments.quick}
    print(json.dumps({**about, **found, "goals": {} if arguments.quick else goals}), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos",
        description="Faults of every part under load: requests that are lost, streams that break, time to heal.",
        epilog="Example: python -m bench.chaos --only redis --only worker/kill",
    )
    names = sorted({*PARTS, *FAULTS, *(cell.name for cell in CELLS), *left_out(api_server=True)})
    add = parser.add_argument
    add("--seed", type=int, default=1, help="of the prompts and their order (default 1)")
    add("--quick", action="store_true", help=f"short faults, and of them only {', '.join(QUICK_CELLS)}")
    add(
        "--only",
        action="append",
        choices=names,
        metavar="CELL",
        help="a part, a fault, or PART/FAULT; may be given several times",
    )
    return parser
