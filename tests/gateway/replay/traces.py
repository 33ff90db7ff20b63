"""Small traces for tests."""

from __future__ import annotations

from itertools import count, pairwise
from random import Random

from gateway.replay.trace import Trace, TraceRequest

BLOCK = 64


def open_trace(number: int = 300, *, tenants: int = 4, rate: float = 20.0, seed: int = 1) -> Trace:
    """Requests of tenants, each with a system prompt of 32 blocks and 1 to 16 blocks of their own; Poisson arrivals."""
    random, own = Random(seed), count(1000)
    requests, at = [], 0.0
    for _ in range(number):
        at += random.expovariate(rate)
        tenant, blocks = random.randrange(tenants), random.randint(1, 16)
        keys = [1_000_000 * (tenant + 1) + place for place in range(32)] + [next(own) for _ in range(blocks)]
        requests.append(TraceRequest(at, len(keys) * BLOCK + random.randrange(BLOCK), random.randint(1, 200), keys))
    return Trace("tenants", BLOCK, requests)


def closed_trace(sessions: int = 20, turns: int = 4) -> Trace:
    """Sessions that grow by 8 blocks a turn and share their first 8."""
    firsts = []
    own = count(1000)
    for _ in range(sessions):
        keys = list(range(1, 9))
        chain: list[TraceRequest] = []
        for _ in range(turns):
            keys = keys + [next(own) for _ in range(8)]
            chain.append(TraceRequest(0.0, len(keys) * BLOCK + 5, 50, keys, think_seconds=0.5))
        for request, following in pairwise(chain):
            request.following = following
        firsts.append(chain[0])
    return Trace("sessions", BLOCK, firsts, closed=True)


def burst_trace(number: int = 200, tokens: int = 6000, *, seconds: float = 10.0) -> Trace:
    """One new prompt, over and over, each with a few tokens of its own."""
    keys = list(range(1, tokens // BLOCK + 1))
    requests = [TraceRequest(seconds * place / number, tokens + 30, 100, keys) for place in range(number)]
    return Trace("burst", BLOCK, requests)
