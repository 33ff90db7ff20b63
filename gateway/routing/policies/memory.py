"""How far admitting a request would overrun each candidate's KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import median
from typing import Final

from gateway.routing.policies.facts import CandidateFacts

FULL: Final = 0.9
"""Share of the cache beyond which requests begin to wait for blocks, or to be preempted."""
REPLY_TOKENS: Final = 256
"""What a reply is taken to need of the KV cache; its length is not known."""


def memory_overruns(tokens: int, candidates: Sequence[CandidateFacts]) -> list[float]:
    """KV use beyond `FULL` once a prompt of `tokens` is admitted, as a share of the cache.

    Use that is not known counts as the others' median, so that nobody wins for want of facts.
    """
    used = [candidate.kv_use for candidate in candidates if candidate.kv_use is not None]
    if not used or tokens == 0:
        return [0.0] * len(candidates)
    need = tokens + REPLY_TOKENS
    smallest = min([candidate.kv_capacity_tokens or inf for candidate in candidates])
    if max(used) + need / smallest <= FULL:
        return [0.0] * len(candidates)
    unknown = median(used)
    overruns = []
    for candidate in candidates:
        use = unknown if candidate.kv_use is None else candidate.kv_use
        if candidate.kv_capacity_tokens:
            use += need / candidate.kv_capacity_tokens
        overruns.append(use - FULL if use > FULL else 0.0)
    return overruns
