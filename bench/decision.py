"""What a decision costs: a prompt of 128 index blocks matched in the mirror, priced for every worker, and the pick.

`measure` is also called by `bench.routing_live`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from random import Random
from statistics import median

from prometheus_client import CollectorRegistry

from gateway.discovery.targets import Target
from gateway.loads import LoadReports
from gateway.prompts.keyer import Prompt
from gateway.routing.router import PoolRouter
from indexer.keys import DEFAULT_INDEX_BLOCK_TOKENS, pool_fingerprint
from indexer.layout import WorkerFacts
from indexer.pool_index import PoolIndex
from warmroute.config import PoolConfig
from warmroute.connection_config import RedisConfig
from warmroute.metrics import GatewayMetrics
from warmroute.redis_client import connect

BLOCKS = 128
PROMPTS = 64
HELD = 8
"""Prompts that a worker has something of."""
ROUNDS = 15
TOKENIZER = "ab" * 32
WORKERS = (100, 2000)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    costs = measure()
    for name, value in costs.items():
        print(f"{name:<28}{value:>10.1f}")
    print(json.dumps(costs))
    return 0


def measure(seed: int = 1, workers: Sequence[int] = WORKERS) -> dict[str, float]:
    """CPU microseconds a decision, by number of workers: medians of rounds over different prompts."""
    return {f"decision_{count}_workers_us": round(_decision_us(count, Random(seed)), 2) for count in workers}


def _decision_us(workers: int, random: Random) -> float:
    prompts = [
        Prompt(BLOCKS * DEFAULT_INDEX_BLOCK_TOKENS + 10, [random.getrandbits(64) for _ in range(BLOCKS)])
        for _ in range(PROMPTS)
    ]
    router = _router(workers, prompts, random)
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for prompt in prompts:
            if router.choose(prompt) is None:
                raise AssertionError("no worker could be chosen")
        rounds.append((time.thread_time() - began) / len(prompts) * 1e6)
    return median(rounds)


def _router(workers: int, prompts: Sequence[Prompt], random: Random) -> PoolRouter:
    """A router whose workers each hold the beginnings of some prompts; nothing of it connects anywhere."""
    metrics = GatewayMetrics(CollectorRegistry())
    index = PoolIndex(connect(RedisConfig()), "bench", metrics)
    fingerprint = pool_fingerprint(
        index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS, base_model="bench", tokenizer=TOKENIZER
    )
    router = PoolRouter(
        PoolConfig(name="bench", model="bench"),
        index,
        LoadReports([], ["bench"], metrics),
        metrics,
        clock=time.monotonic,
        random=random,
    )
    names = [f"worker-{number}" for number in range(workers)]
    for slot, name in enumerate(names, start=1):
        index.mirror.open_slot(slot)
        for prompt in random.sample(prompts, HELD):
            index.mirror.add(slot, "device", prompt.keys[: random.randrange(1, BLOCKS + 1)])
        facts = WorkerFacts(
            address=f"10.0.0.1:{slot}",
            model="bench",
            engine="builtin",
            engine_version="0",
            engine_block_tokens=16,
            index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS,
            fingerprint=fingerprint,
            publishes_events=True,
        )
        index.mirror.set_worker(name, slot, facts)
    router.use_tokenizer(TOKENIZER)
    router.set_targets(Target(name, "10.0.0.1", number + 1, name) for number, name in enumerate(names))
    for worker in router.workers.all:
        worker.checked(0.0, healthy=True)
    return router
