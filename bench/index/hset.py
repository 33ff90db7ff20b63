"""The end-to-end baseline: one pipelined HSET a block and worker, as indexes do that keep a hash a block.

`HSET <block> <worker> <time>`, 1,000 to a pipeline, over one connection of redis-py. Nothing reads it back, nothing
checks order or ownership, and the names are made before the clock starts: all of that is in its favour.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redis import Redis

from bench.index.workload import worker_id

PIPELINE_COMMANDS: Final = 1000


@dataclass(frozen=True, slots=True)
class Hset:
    """`memory_bytes`: what the server's memory grew by."""

    pairs: int
    seconds: float
    client_cpu_seconds: float
    memory_bytes: int


def write(redis_url: str, held: Sequence[array[int]]) -> Hset:
    """Write the pairs into an empty server, batch by batch of each worker in turn, and empty it again."""
    batches = [
        (worker_id(worker).encode(), [b"block:%016x" % key for key in keys[first : first + PIPELINE_COMMANDS]])
        for first in range(0, max(map(len, held)), PIPELINE_COMMANDS)
        for worker, keys in enumerate(held)
    ]
    with Redis.from_url(redis_url) as redis:
        before = redis.info("memory")["used_memory"]
        cpu, start = time.process_time(), time.perf_counter()
        for worker, blocks in batches:
            now = b"%d" % time.time()
            with redis.pipeline(transaction=False) as pipeline:
                for block in blocks:
                    pipeline.execute_command("HSET", block, worker, now)
                pipeline.execute()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        grown = redis.info("memory")["used_memory"] - before
        redis.execute_command("FLUSHALL", "SYNC")
    return Hset(sum(len(blocks) for _, blocks in batches), seconds, cpu, grown)
