"""Data-parallel ranks: an engine that runs several behind one address is several workers, one a rank.

Discovery finds the address; the index knows the ranks, which publish as `<worker id>/dp<N>` each what it holds. So a
target with ranks in the index becomes one place a rank, and requests name the rank that they go to by a header that
vLLM and SGLang read. No I/O and no clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from gateway.routing.census.targets import Target
from indexer.layout import WorkerFacts

RANK_HEADER: Final = b"x-data-parallel-rank"
MOST_RANKS: Final = 1024
"""Of one engine; a larger number is none."""
_RANKED: Final = re.compile(r"(.+)/dp(0|[1-9][0-9]{0,3})")


def places(
    targets: Iterable[Target], index: Mapping[str, WorkerFacts], slots: Mapping[str, int]
) -> Iterator[tuple[str, Target]]:
    """Every target, or in place of one with ranks in the index a target for each; with the uid that discovery gave.

    Ranks are joined as workers are: by worker_id, else by address. What was published last counts: an engine that
    came back with ranks, or without, leaves its former rows in the index for a while.
    """
    engines = _Engines(index, slots)
    for target in targets:
        engine = target.worker_id
        if engine not in engines.newest:
            _, engine = engines.by_address.get(target.address, (0.0, None))
        if engine is None or not engines.newest[engine][1]:
            yield target.uid, target
            continue
        for number in sorted(engines.ranks[engine]):
            suffix = f"/dp{number}"
            name = (target.name or target.worker_id or target.address) + suffix
            uid, worker_id = target.uid + suffix, engine + suffix
            yield target.uid, replace(target, uid=uid, worker_id=worker_id, name=name, rank=number)


class _Engines:
    """The index by engine: an engine's id is what its ranks' ids have in common."""

    def __init__(self, index: Mapping[str, WorkerFacts], slots: Mapping[str, int]) -> None:
        self.ranks: dict[str, list[int]] = {}
        self.newest: dict[str, tuple[float, bool]] = {}
        """The newest row's slot, and whether that row is a rank."""
        self.by_address: dict[str, tuple[float, str | None]] = {}
        """The newest row's slot and engine."""
        for worker_id, facts in index.items():
            engine, number = _split(worker_id)
            # Slots are given out in order; a row without one has just said Hello.
            slot = float(slots.get(worker_id) or math.inf)
            self.newest[engine] = max(self.newest.get(engine, (0.0, False)), (slot, number is not None))
            if slot >= self.by_address.get(facts.address, (0.0, None))[0]:
                self.by_address[facts.address] = slot, engine
            if number is not None:
                self.ranks.setdefault(engine, []).append(number)


def _split(worker_id: str) -> tuple[str, int | None]:
    match = _RANKED.fullmatch(worker_id) if "/dp" in worker_id else None
    if match is None or int(match[2]) >= MOST_RANKS:
        return worker_id, None
    return match[1], int(match[2])
