"""Workloads on which a router may overload the worker that is warm: tenants with system prompts of their own.

`load` is the share of what the workers can do together, were every system prompt cached where it is asked for: the
time that requests take slots or compute prompts, whichever is scarcer. Sessions begin as a Poisson process; a turn
follows the last reply after a while. All of it follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Final

from gateway.replay.machine import MACHINES, Machine
from gateway.replay.trace import Trace, TraceRequest

BLOCK_TOKENS: Final = 64
SEED: Final = 1


@dataclass(frozen=True, slots=True)
class Tenants:
    """`hot_share` of the sessions are one tenant's; with `shifts`, another one's after each part of the time. Ranges
    are drawn from evenly."""

    tenants: int
    hot_share: float
    system_tokens: tuple[int, int]
    question_tokens: tuple[int, int]
    reply_tokens: tuple[int, int]
    turns: tuple[int, int]
    think_seconds: float
    seconds: float = 120.0
    shifts: int = 1


@dataclass(frozen=True, slots=True)
class HotSpots:
    """A workload: who asks, and what the workers are like."""

    name: str
    traffic: Tenants
    machine: Machine
    slow_workers: int = 0

    def trace(self, load: float, *, workers: int = 8, seed: int = SEED) -> Trace:
        """Sessions at this load."""
        rate = load * _capacity(self.traffic, self.machine) * (workers - self.slow_workers / 2)
        return Trace(f"{self.name}:{round(100 * load)}", BLOCK_TOKENS, _sessions(self.traffic, rate, Random(seed)))


def _capacity(traffic: Tenants, machine: Machine) -> float:
    """Requests a second of one worker whose system prompts are cached: a request takes a slot for its decode steps
    and the prefill of others within them, and the machine for its own prefill."""
    question, reply = sum(traffic.question_tokens) / 2, sum(traffic.reply_tokens) / 2
    context = sum(traffic.system_tokens) / 2
    prefill = machine.prefill(round(question + reply), round(context))
    slots = machine.max_streams
    step = machine.step_fixed + slots * (machine.step_stream + machine.step_kv_token * context)
    # In a second: r requests, each with `prefill` of computing, which also slows the steps of the others.
    by_slots = slots / (reply * step + slots * prefill)
    return min(by_slots, 1 / (prefill + reply * step / slots))


def _sessions(traffic: Tenants, requests_per_second: float, random: Random) -> list[TraceRequest]:
    names = count(1)
    systems = [_keys(random.randint(*traffic.system_tokens), names) for _ in range(traffic.tenants)]
    mean_turns = sum(traffic.turns) / 2
    first, at = [], 0.0
    while True:
        at += random.expovariate(requests_per_second / mean_turns)
        if at >= traffic.seconds:
            return first
        hot = int(at / traffic.seconds * traffic.shifts) % traffic.tenants
        tenant = hot if random.random() < traffic.hot_share else random.randrange(traffic.tenants)
        first.append(_session(traffic, systems[tenant], at, names, random))


def _session(
    traffic: Tenants, system: tuple[int, list[int]], at: float, names: count[int], random: Random
) -> TraceRequest:
    tokens, keys = system
    first: TraceRequest | None = None
    former: TraceRequest | None = None
    for _ in range(random.randint(*traffic.turns)):
        tokens += random.randint(*traffic.question_tokens)
        keys = [*keys, *(next(names) for _ in range(tokens // BLOCK_TOKENS - len(keys)))]
        reply = random.randint(*traffic.reply_tokens)
        think = random.expovariate(1 / traffic.think_seconds) if former is not None else 0.0
        request = TraceRequest(at, tokens, reply, keys, think_seconds=think)
        tokens += reply
        if former is not None:
            former.following = request
        first, former = first or request, request
    assert first is not None
    return first


def _keys(tokens: int, names: count[int]) -> tuple[int, list[int]]:
    return tokens, [next(names) for _ in range(tokens // BLOCK_TOKENS)]


ROOM: Final = replace(MACHINES["8b"], max_streams=8, cache_tokens=2_000_000)
WORKLOADS: Final = {
    each.name: each
    for each in (
        HotSpots("slots", Tenants(16, 0.0, (1000, 3000), (20, 120), (20, 400), (2, 6), 2.0), ROOM),
        HotSpots(
            "roomy",
            Tenants(16, 0.0, (2000, 8000), (20, 120), (20, 120), (2, 6), 2.0, seconds=30.0),
            replace(ROOM, max_streams=64),
        ),
        HotSpots("hot_tenant", Tenants(17, 0.5, (2000, 8000), (20, 120), (20, 120), (2, 6), 2.0), ROOM),
        HotSpots(
            "tight_cache",
            Tenants(60, 0.0, (2000, 8000), (20, 120), (20, 120), (2, 6), 2.0),
            replace(ROOM, max_streams=16, cache_tokens=60_000),
        ),
        HotSpots("shift", Tenants(17, 0.5, (2000, 8000), (20, 120), (20, 120), (2, 6), 2.0, shifts=6), ROOM),
        HotSpots("mixed", Tenants(17, 0.3, (2000, 8000), (20, 120), (20, 120), (2, 6), 2.0), ROOM, slow_workers=2),
        HotSpots(
            "agents",
            Tenants(8, 0.0, (6000, 10000), (50, 1500), (20, 200), (15, 30), 3.0),
            replace(MACHINES["8b"], max_streams=16, cache_tokens=800_000),
        ),
        HotSpots(
            "junk",  # caches full of what nobody asks for again
            Tenants(17, 0.5, (2000, 8000), (1000, 3000), (20, 120), (1, 2), 2.0),
            replace(ROOM, cache_tokens=150_000),
        ),
    )
}
