"""The command: starts everything, measures in turns, prints a table and one JSON object as its last line.

    python -m bench.relay [--seconds 2] [--rounds 3] [--chunks 200] [--connections 16] [--seed 1] [--peer CMD]

Ours has everything on: API keys, cache salts, request, token and concurrency limits leased through a Valkey server,
accounting; it routes by load. Two more of it are measured by one figure each: one without keys, and one that routes by
cache and load, with the built-in model's tokenizer and an index that has the prompts.

The figures are a proxy's CPU time, user and system, as the kernel's scheduler counts it, over the work done: a short
reply to a small request or to one of 8 KB, and one `data:` event of a stream, each event written by the upstream by
itself (a chunk's cost is what a stream of N costs more than one of 1, over N - 1). Proxies run on one core, the
upstream and the clients on another; they are measured in turns, and the median over the rounds is printed.

Most of a chunk is the kernel's: epoll, one read, one write. On a busy machine any proxy finds several events in one
read and passes them on together, which lowers its figure; compare ratios, and those of quiet runs only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import uvloop
from redis import Redis
from redis.exceptions import RedisError

from bench.relay import exact, servers
from bench.relay.load import body, load
from bench.relay.servers import Server
from gateway.process.compiled import description, is_compiled

SMALL_BYTES = 400
LARGE_BYTES = 8192
WARM_SECONDS = 0.2
START_SECONDS = 60.0


OURS = "warmroute"
OPEN = "open"
EXACT = "exact"
FIGURES = {"small": "small_us", "large": "prompt_8k_us", "chunk": "chunk_us"}
LABELS = {"small": "us a small request", "large": "us a request of 8 KB", "chunk": "us a streamed chunk"}
ONE_FIGURE = {OPEN: "small", EXACT: "large"}
EXACT_GOAL_US = 127.0

Costs = dict[str, float]
"""CPU microseconds of a proxy, by figure: a key of FIGURES."""


@dataclass(frozen=True)
class Workload:
    """One body a connection, for each of the four measurements, and how long one takes."""

    seconds: float
    chunks: int
    small: list[bytes]
    large: list[bytes]
    one: list[bytes]
    many: list[bytes]

    @classmethod
    def make(cls, seed: int, connections: int, chunks: int, seconds: float) -> Workload:
        random = Random(seed)

        def bodies(size: int, events: int) -> list[bytes]:
            return [body(random, size, events) for _ in range(connections)]

        small, large = bodies(SMALL_BYTES, 0), bodies(LARGE_BYTES, 0)
        return cls(seconds, chunks, small, large, bodies(SMALL_BYTES, 1), bodies(SMALL_BYTES, chunks))


def measure(proxy: Server, workload: Workload) -> Costs:
    """One round of one proxy."""

    def cost(payloads: list[bytes]) -> float:
        uvloop.run(load(proxy.port, payloads, WARM_SECONDS))
        before = proxy.cpu_seconds()
        replies = uvloop.run(load(proxy.port, payloads, workload.seconds))
        return (proxy.cpu_seconds() - before) / replies * 1e6

    match ONE_FIGURE.get(proxy.name):
        case "small":
            return {"small": cost(workload.small)}
        case "large":
            return {"large": cost(workload.large)}
    one, many = cost(workload.one), cost(workload.many)
    chunk = (many - one) / (workload.chunks - 1)
    return {"small": cost(workload.small), "large": cost(workload.large), "chunk": chunk}


def wait_ready(proxy: Server, payload: bytes) -> None:
    """Wait until the proxy relays a request. Raises TimeoutError."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            uvloop.run(load(proxy.port, [payload], 0.0))
        except OSError as error:
            if not proxy.running or time.monotonic() > until:
                raise TimeoutError(f"{proxy.name} does not relay requests: {error}") from error
            time.sleep(0.05)
        else:
            return


def wait_redis(server: Server) -> None:
    """Wait until a Redis server answers. Raises TimeoutError."""
    until = time.monotonic() + START_SECONDS
    with Redis(port=server.port) as redis:
        while True:
            try:
                redis.ping()
            except RedisError as error:
                if not server.running or time.monotonic() > until:
                    raise TimeoutError(f"{server.name} does not answer: {error}") from error
                time.sleep(0.05)
            else:
                return


def measure_all(arguments: argparse.Namespace) -> tuple[dict[str, Costs], float | None]:
    """The medians by proxy, and the mean of tokens matched by exact routing.

    nginx is missing where it is not installed, exact routing where the built-in model is not (None). Raises
    NotExactError where it does not match.
    """
    model = exact.model_folder()
    cores = sorted(os.sched_getaffinity(0))
    under_test, ours = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    workload = Workload.make(arguments.seed, arguments.connections, arguments.chunks, arguments.seconds)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if ours is not None:
            stack.callback(os.sched_setaffinity, 0, cores)
            os.sched_setaffinity(0, {ours})
        engine = stack.enter_context(servers.upstream(ours))
        wait_ready(engine, workload.small[0])
        valkey = stack.enter_context(servers.valkey(ours))
        wait_redis(valkey)
        if model is not None:
            workload.large[:] = exact.publish(valkey.port, EXACT, engine.port, model, workload.large)
        gateway = partial(servers.Gateway, folder=Path(folder), upstream_port=engine.port, redis_port=valkey.port)
        exact_gateway = None if model is None else gateway(EXACT, core=under_test, model_path=model)
        started = [
            gateway(OURS, core=under_test),
            servers.aiohttp(engine.port, under_test),
            servers.nginx(Path(folder), engine.port, under_test),
            servers.peer(arguments.peer, engine.port, under_test) if arguments.peer else None,
            gateway(OPEN, core=under_test, keys=False),
            exact_gateway,
        ]
        proxies = [stack.enter_context(proxy) for proxy in started if proxy is not None]
        for proxy in proxies:
            wait_ready(proxy, workload.small[0])
        matched = None
        if exact_gateway is not None:
            exact.wait_exact(exact_gateway)
            matched = exact.matched_tokens(exact_gateway, workload.large)
        rounds = []
        for number in range(arguments.rounds):
            print(f"... round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
            rounds.append({proxy.name: measure(proxy, workload) for proxy in proxies})
        if exact_gateway is not None:
            exact.matched_tokens(exact_gateway, workload.large)  # still so
    return {
        name: {figure: median(costs[name][figure] for costs in rounds) for figure in first}
        for name, first in rounds[0].items()
    }, matched


def report(costs: dict[str, Costs], matched: float | None) -> dict[str, float | None]:
    """Print the table; the figures for programs. Ratios are ours over the other's, null where it was not measured."""
    ours = costs[OURS]
    whole = [name for name in costs if name not in ONE_FIGURE]
    print(f"{'CPU of the proxy':<28}" + "".join(f"{name:>12}" for name in whole))
    figures: dict[str, float | None] = {}
    for figure, key in FIGURES.items():
        print(f"{LABELS[figure]:<28}" + "".join(f"{costs[name][figure]:>12.1f}" for name in whole))
        figures[key] = round(ours[figure], 2)
        figures |= {f"{name}_{key}": round(costs[name][figure], 2) for name in whole if name != OURS}
    for figure, key in FIGURES.items():
        for other in ("nginx", "aiohttp", "peer"):
            if other in costs or other != "peer":
                ratio = round(ours[figure] / costs[other][figure], 3) if other in costs else None
                figures[f"{key.removesuffix('_us')}_over_{other}"] = ratio
    small = costs[OPEN]["small"]
    print(f"without API keys: {small:.1f} us a small request")
    figures["small_open_us"] = round(small, 2)
    return figures | _report_exact(costs, matched)


def _report_exact(costs: dict[str, Costs], matched: float | None) -> dict[str, float | None]:
    names = ("prompt_8k_exact_us", "prompt_8k_exact_over_load", "prompt_8k_exact_matched_tokens")
    if EXACT not in costs or matched is None:
        return dict.fromkeys(names)
    by_cache, by_load = costs[EXACT]["large"], costs[OURS]["large"]
    print(
        f"by cache and load: {by_cache:.1f} us a request of 8 KB seen before (goal: less than {EXACT_GOAL_US:.0f}), "
        f"{by_cache / by_load:.2f} times by load; {matched:.0f} tokens matched"
    )
    return dict(zip(names, (round(by_cache, 2), round(by_cache / by_load, 3), round(matched, 1)), strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="bench.relay", description="What relaying costs, beside other proxies.")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="how often each proxy is measured")
    parser.add_argument("--chunks", type=int, default=200, help="events in a stream")
    parser.add_argument("--connections", type=int, default=16, help="concurrent clients")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts' text")
    parser.add_argument("--peer", metavar="CMD", help="another proxy: a command with {port} and {upstream} in it")
    arguments = parser.parse_args(argv)
    started_at = time.monotonic()
    costs, matched = measure_all(arguments)
    figures = report(costs, matched)
    if "nginx" not in costs:
        print("nginx is not installed (Debian: nginx-light): its figures are null")
    print(f"the gateway ran as {description()}; took {time.monotonic() - started_at:.1f} s")
    print(json.dumps({"seed": arguments.seed, "compiled": is_compiled(), **figures}))
    return 0
