"""Resident memory of a mirror, and lookups that find it outside the CPU's caches; in a fresh process each."""

from __future__ import annotations

import gc
import os
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

from bench.index.processes import in_fresh_process
from bench.index.report import Report
from bench.index.workload import HOLDERS, Sizes, facts, random_keys, rng, worker_id
from indexer.reader.mirror import Mirror

COLD_BLOCKS = 128
HOLDER_SETS = 100_000


@dataclass(frozen=True, slots=True)
class Memory:
    """`cold_match_us`: one lookup of 128 blocks in this mirror, each prompt asked once; mean CPU microseconds."""

    bytes_a_key: float
    cold_match_us: float


def measure(report: Report, seed: int, sizes: Sizes) -> None:
    report.heading(
        f"Mirror: resident memory of {sizes.memory_keys:,} keys with {HOLDERS} random holders each (growth of a fresh "
        "process's RSS)"
    )
    for slots in (100, 1000):
        report.progress(f"filling a mirror with {sizes.memory_keys:,} keys over {slots:,} slots")
        memory = in_fresh_process(_fill, seed, sizes.memory_keys, sizes.cold_prompts, slots)
        suffix = "" if slots == 100 else "_1000_slots"
        bound = 160 if slots == 100 else None
        report.add(
            f"mirror_bytes_per_key{suffix}", memory.bytes_a_key, f"{slots:,} slots", unit=" B/key", at_most=bound
        )
        report.add(
            f"match_128_cold{suffix or '_100_slots'}_us",
            memory.cold_match_us,
            "  lookup of 128 blocks in it, prompts never asked before",
            unit=" us",
        )


def _fill(seed: int, count: int, cold_prompts: int, slots: int) -> Memory:
    source = rng(seed, f"memory {slots}")
    keys = random_keys(source, count)
    holder_sets = [source.sample(range(slots), HOLDERS) for _ in range(HOLDER_SETS)]
    by_slot = [array("Q") for _ in range(slots)]
    for key in keys:
        for slot in holder_sets[source.randrange(HOLDER_SETS)]:
            by_slot[slot].append(key)
    prompts = [list(random_keys(source, COLD_BLOCKS)) for _ in range(cold_prompts)]
    del holder_sets
    gc.collect()
    before = _resident_bytes()
    mirror = Mirror()
    for slot in range(slots):
        mirror.open_slot(slot + 1)
        mirror.set_worker(worker_id(slot), slot + 1, facts(count))
    # As deltas come: a few thousand keys of one slot, then of another.
    deepest = max(map(len, by_slot))
    for first in range(0, deepest, 4096):
        for slot, held in enumerate(by_slot, start=1):
            mirror.add(slot, "device", held[first : first + 4096])
    gc.collect()
    grown = _resident_bytes() - before
    assert mirror.size == len(set(keys)), "the mirror lost keys"
    for slot in range(slots):
        for prompt in prompts:
            mirror.add(slot + 1, "device", prompt[: source.randrange(COLD_BLOCKS + 1)])
    start = time.thread_time()
    for prompt in prompts:
        mirror.match(prompt)
    return Memory(grown / count, (time.thread_time() - start) / cold_prompts * 1e6)


def _resident_bytes() -> int:
    """Of this process; Linux."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
