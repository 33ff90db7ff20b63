"""Sizes and seeded inputs. The sizes of a full run are fixed, so that figures of two runs compare."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from typing import Final

from indexer.layout import WorkerFacts

POOL: Final = "bench"
HOLDERS: Final = 4
BLOCK_TOKENS: Final = 64
# Slices of the blocks that worker w holds are w plus these, modulo the workers: each slice has four distinct holders.
_OFFSETS: Final = (0, 7, 19, 31)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a run measures."""

    samples: int
    memory_keys: int
    cold_prompts: int
    workers: int
    keys_a_worker: int
    lag_seconds: float

    @property
    def pairs(self) -> int:
        """(worker, key) pairs of the end-to-end run."""
        return self.workers * self.keys_a_worker


FULL: Final = Sizes(
    samples=21, memory_keys=2_000_000, cold_prompts=500, workers=50, keys_a_worker=32_000, lag_seconds=10.0
)
QUICK: Final = Sizes(samples=3, memory_keys=40_000, cold_prompts=20, workers=50, keys_a_worker=800, lag_seconds=1.0)


def facts(capacity_keys: int) -> WorkerFacts:
    """What workers of the bench say of themselves."""
    return WorkerFacts(
        address="127.0.0.1:1",
        model="bench",
        engine="bench",
        engine_version="0",
        engine_block_tokens=BLOCK_TOKENS,
        index_block_tokens=BLOCK_TOKENS,
        fingerprint="f",
        publishes_events=True,
        capacity={"device": capacity_keys},
    )


def rng(seed: int, purpose: str) -> random.Random:
    """Independent of what other measurements draw."""
    return random.Random(f"{seed} {purpose}")


def random_keys(source: random.Random, count: int) -> array[int]:
    """Keys as hashes are: uniform in 64 bits."""
    keys = array("Q")
    keys.frombytes(source.randbytes(8 * count))
    return keys


def worker_id(number: int) -> str:
    return f"worker-{number}"


def keys_of_workers(seed: int, sizes: Sizes) -> list[array[int]]:
    """The keys of every worker of the end-to-end run, in random order; each block has four holders."""
    source = rng(seed, "workers")
    slice_keys = sizes.keys_a_worker // HOLDERS
    blocks = random_keys(source, sizes.workers * slice_keys)
    held = []
    for worker in range(sizes.workers):
        keys: list[int] = []
        for offset in _OFFSETS:
            first = (worker + offset) % sizes.workers * slice_keys
            keys += blocks[first : first + slice_keys]
        source.shuffle(keys)
        held.append(array("Q", keys))
    return held
