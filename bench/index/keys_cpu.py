"""CPU of computing a prompt's keys, against Python's own hash of the same blocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from bench.index.report import Report
from bench.index.workload import BLOCK_TOKENS, Sizes, rng
from indexer.keys import chain, token_bytes

TOKENS = 8192


def measure(report: Report, seed: int, sizes: Sizes) -> None:
    report.heading(f"Keys of a prompt of {TOKENS:,} tokens, {BLOCK_TOKENS} a block")
    source = rng(seed, "tokens")
    tokens = [source.randrange(1 << 17) for _ in range(TOKENS)]
    packed = token_bytes(tokens)
    blocks = range(0, TOKENS, BLOCK_TOKENS)
    ours = _microseconds(lambda: chain(packed, 1, block_tokens=BLOCK_TOKENS), sizes.samples)
    theirs = _microseconds(
        lambda: [hash(tuple(tokens[start : start + BLOCK_TOKENS])) for start in blocks], sizes.samples
    )
    report.add("keys_8192_tokens_us", ours, "chain of xxh3 from packed tokens", unit=" us")
    report.add("keys_8192_tokens_hash_us", theirs, "  baseline: hash(tuple) of each block, no chain", unit=" us")
    report.add("keys_over_hash", ours / theirs, "  share of the baseline's CPU")


def _microseconds(work: Callable[[], object], samples: int, *, rounds: int = 50) -> float:
    taken = []
    for _ in range(samples):
        start = time.thread_time()
        for _ in range(rounds):
            work()
        taken.append((time.thread_time() - start) / rounds * 1e6)
    return statistics.median(taken)
