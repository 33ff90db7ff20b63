"""CPU of the mirror's two hot paths, each beside its naive twin: matching a prompt and applying a log entry."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from bench.index.report import Report
from bench.index.workload import Sizes, facts, keys_of_workers, random_keys, rng, worker_id
from indexer.layout import LogDelta, decode_entry, encode_delta
from indexer.reader.mirror import Mirror
from tests.indexer.reader.naive_mirror import NaiveMirror

DELTA_KEYS = 4096


def measure(report: Report, seed: int, sizes: Sizes) -> None:
    """Print the figures; in this process, CPU time of this thread."""
    report.heading("Mirror: CPU of a lookup (each slot holds a random number of the prompt's leading blocks)")
    _match(report, seed, sizes, blocks=128, slots=100, prompts=16)
    _match(report, seed, sizes, blocks=3750, slots=96, prompts=4)
    report.heading(f"Mirror: CPU of applying log entries of {DELTA_KEYS} keys, decoding included")
    _apply(report, seed, sizes)


def _match(report: Report, seed: int, sizes: Sizes, *, blocks: int, slots: int, prompts: int) -> None:
    source = rng(seed, f"match {blocks}x{slots}")
    mirror, naive = Mirror(), NaiveMirror()
    asked = [list(random_keys(source, blocks)) for _ in range(prompts)]
    for slot in range(1, slots + 1):
        held = [prompt[: source.randrange(blocks + 1)] for prompt in asked]
        for twin in (mirror, naive):
            twin.open_slot(slot)
            for keys in held:
                twin.add(slot, "device", keys)
            twin.set_worker(worker_id(slot), slot, facts(blocks * prompts))
    for prompt in asked:
        assert mirror.match(prompt) == naive.match(prompt), "the mirror and its naive twin differ"
    ours, theirs = _microseconds_each([mirror.match, naive.match], asked, sizes.samples, rounds=3000 // blocks + 1)
    if blocks == 128:
        report.add("match_128x100_us", ours, "match 128 blocks x 100 slots", unit=" us")
        report.add(
            "match_128x100_naive_us", theirs, "  the same by the naive twin (a set of keys a worker)", unit=" us"
        )
        report.add("match_over_naive", ours / theirs, "  share of the naive twin's CPU", at_most=0.15)
    else:
        report.add("match_3750x96_us", ours, "match 3,750 blocks x 96 slots", unit=" us", at_most=5000)
        report.add("match_3750x96_naive_us", theirs, "  the same by the naive twin", unit=" us")
        report.add("match_3750x96_over_naive", ours / theirs, "  share of the naive twin's CPU")


def _microseconds_each(
    calls: Sequence[Callable[[Sequence[int]], object]], prompts: Sequence[Sequence[int]], samples: int, *, rounds: int
) -> list[float]:
    """CPU microseconds of a call: the median of samples, taken in turns so that all meet the same neighbours."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(samples):
        for call, taken in zip(calls, times, strict=True):
            start = time.thread_time()
            for _ in range(rounds):
                for prompt in prompts:
                    call(prompt)
            taken.append((time.thread_time() - start) / rounds / len(prompts) * 1e6)
    return [statistics.median(taken) for taken in times]


def _apply(report: Report, seed: int, sizes: Sizes) -> None:
    """The log of the end-to-end run: every worker fills its cache; then each delta evicts as much as it adds."""
    held = keys_of_workers(seed, sizes)
    fill, churn = [], []
    fresh = rng(seed, "churn")
    for first in range(0, sizes.keys_a_worker, DELTA_KEYS):
        for slot, keys in enumerate(held, start=1):
            piece = keys[first : first + DELTA_KEYS]
            fill.append(_entry(slot, piece, ()))
            half = piece[: len(piece) // 2]
            churn.append(_entry(slot, random_keys(fresh, len(half)), half))
    rates = {}
    for name, twin in (("", Mirror()), ("naive_", NaiveMirror())):
        for slot in range(1, sizes.workers + 1):
            twin.open_slot(slot)
            twin.set_worker(worker_id(slot), slot, facts(sizes.keys_a_worker))
        for phase, entries in (("", fill), ("churn_", churn)):
            rates[name + phase] = _keys_a_second(twin, entries)
    report.add(
        "mirror_apply_keys_per_s", rates[""], f"fill {sizes.workers} slots", unit=" keys/s CPU", at_least=1_000_000
    )
    report.add("mirror_apply_naive_keys_per_s", rates["naive_"], "  the same by the naive twin", unit=" keys/s CPU")
    report.add(
        "mirror_apply_churn_keys_per_s", rates["churn_"], "full slots: evict 2,048, add 2,048", unit=" keys/s CPU"
    )
    report.add(
        "mirror_apply_churn_naive_keys_per_s",
        rates["naive_churn_"],
        "  the same by the naive twin",
        unit=" keys/s CPU",
    )


def _entry(slot: int, added: Sequence[int], removed: Sequence[int]) -> dict[bytes, bytes]:
    """A delta's log entry as Redis returns it."""
    return {
        b"v": b"1",
        b"p": b"0-0",
        b"k": b"delta",
        b"w": worker_id(slot).encode(),
        b"s": str(slot).encode(),
        b"keys": encode_delta({"device": added}, {"device": removed}),
    }


def _keys_a_second(twin: Mirror | NaiveMirror, entries: Sequence[dict[bytes, bytes]]) -> float:
    keys = 0
    start = time.thread_time()
    for fields in entries:
        _, entry = decode_entry(fields)
        assert isinstance(entry, LogDelta)
        for tier, gone in entry.removed.items():
            twin.remove(entry.slot, tier, gone)
            keys += len(gone)
        for tier, new in entry.added.items():
            twin.add(entry.slot, tier, new)
            keys += len(new)
    return keys / (time.thread_time() - start)
