"""Traces in Mooncake's format: JSON lines of `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

A hash id names a block of 512 tokens and all before it; the last, partial one is left out. Time stamps of published
traces are quantised to seconds: the requests of one stamp are spread evenly until the next. Source of the format:
R. Qin et al., Mooncake, FAST 2025, and its published traces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from gateway.replay.trace import Trace, TraceRequest

BLOCK_TOKENS: Final = 512
LONGEST_SPREAD_SECONDS: Final = 3.1


def is_mooncake(row: Mapping[str, Any]) -> bool:
    return "hash_ids" in row and "timestamp" in row


def read_mooncake(name: str, rows: Iterable[Mapping[str, Any]], *, context_limit: int) -> Trace:
    """Requests of more than `context_limit` tokens, prompt and reply, are left out. Raises KeyError and ValueError for
    a row that is not of the format, as it is read."""
    everything = [_checked(row) for row in rows]
    kept = [row for row in everything if row["input_length"] + row["output_length"] <= context_limit]
    stamps = sorted({row["timestamp"] for row in kept})
    until = {stamp: min((after - stamp) / 1000, LONGEST_SPREAD_SECONDS) for stamp, after in pairwise(stamps)}
    members = Counter(row["timestamp"] for row in kept)
    seen: Counter[float] = Counter()
    requests = []
    for row in kept:
        stamp, tokens, keys = row["timestamp"], max(1, row["input_length"]), row["hash_ids"]
        share = seen[stamp] / members[stamp]
        seen[stamp] += 1
        requests.append(
            TraceRequest(
                stamp / 1000 + until.get(stamp, LONGEST_SPREAD_SECONDS) * share,
                tokens,
                max(1, row["output_length"]),
                keys[: tokens // BLOCK_TOKENS],
                str(keys[1]) if len(keys) > 1 else "",
            )
        )
    requests.sort(key=lambda request: request.at)
    return Trace(name, BLOCK_TOKENS, requests, left_out=len(everything) - len(kept))


def _checked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row; errors name the field."""
    for name in ("input_length", "output_length"):
        if type(row[name]) is not int:
            raise ValueError(f"{name} is {row[name]!r:.80}; it must be a whole number")
    if type(row["timestamp"]) not in {int, float}:
        raise ValueError(f"timestamp is {row['timestamp']!r:.80}; it must be a number of milliseconds")
    keys = row["hash_ids"]
    if not isinstance(keys, list) or any(type(key) is not int for key in keys):
        raise ValueError(f"hash_ids is {keys!r:.80}; it must be a list of whole numbers below 2**64")
    return row
