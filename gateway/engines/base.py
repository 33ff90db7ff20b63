"""What the gateway must know of an engine to send it requests; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HINTS: Final = frozenset(
    {"prompt_cache_key", "prompt_cache_retention", "session_id", "priority", "workflow", "nvext", "cache_control"}
)
"""Fields that steer the gateway and, where an engine takes them, the engine's own cache."""
MESSAGES: Final = frozenset({"/v1/messages"})
"""No engine takes a salt on this path."""
POOLING: Final = frozenset({"/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score", "/classify", "/pooling"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one engine makes of a request. Its module's `DIALECT` is the only instance."""

    rejects: frozenset[str] = frozenset()
    """Fields of HINTS for which it refuses a request; they are taken out of the body."""
    unsalted: frozenset[str] = frozenset()
    """Paths whose prompts meet its prefix cache and on which it ignores `cache_salt`."""
    takes_priority: bool = False
    """It schedules by `priority` where that is switched on, and accepts the field where it is not."""
    lower_priority_first: bool = False
    """Its `priority` counts the other way than ours: here a higher one is more important."""
    steers: frozenset[str] = frozenset()
    """Fields of its own by which a body chooses a rank, a peer of a disaggregated engine, code or state of others:
    meant for routers and operators, taken out of tenants' bodies."""
    renders: bool = False
    """It tells a prompt's token ids under the request's own path and `/render`; where not, under `/tokenize`."""


UNKNOWN: Final = Dialect(unsalted=MESSAGES, renders=True)
"""Of an engine that nobody has named: its requests stay as they are, and both ways to its token ids are tried."""
