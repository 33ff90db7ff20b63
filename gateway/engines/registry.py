"""How engines differ in the request fields that the gateway understands; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

HINTS: Final = frozenset(
    {"prompt_cache_key", "prompt_cache_retention", "session_id", "priority", "workflow", "nvext", "cache_control"}
)
"""Fields that steer the gateway and, where an engine takes them, the engine's own cache."""


@dataclass(frozen=True, slots=True)
class EngineRules:
    """What one engine makes of them."""

    lower_priority_first: bool = False
    """Its `priority` counts the other way: here a higher one is more important."""
    rejects: frozenset[str] = frozenset()
    """Hints for which it refuses a request."""
    unsalted: frozenset[str] = frozenset()
    """Paths whose prompts meet its prefix cache and on which it ignores `cache_salt`."""
    takes_priority: bool = False
    """It schedules by `priority`, where that is switched on, and takes it where it is not."""


_MESSAGES: Final = frozenset({"/v1/messages"})
_POOLS: Final = frozenset({"/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score", "/classify", "/pooling"})


ENGINES: Final[Mapping[str, EngineRules]] = {
    # Extra fields are ignored by its schemas, except for the type of `session_id` and `priority`.
    "vllm": EngineRules(lower_priority_first=True, unsalted=_MESSAGES, takes_priority=True),
    "sglang": EngineRules(unsalted=_MESSAGES | _POOLS, takes_priority=True),
    # Its schemas forbid unknown fields; it has `cache_salt`, and `prompt_cache_key` on one path only. Where it lacks a
    # salt it refuses the request itself.
    "tensorrt-llm": EngineRules(rejects=HINTS),
    "builtin": EngineRules(),
}
UNKNOWN: Final = EngineRules(unsalted=_MESSAGES)
"""An engine that nobody has named: its requests are left as they are. No engine has a salt on these paths."""


@lru_cache(maxsize=64)
def unsalted_paths(engines: frozenset[str]) -> frozenset[str]:
    """Paths on which at least one of a pool's engines would mix what is to be kept apart; none named: see `UNKNOWN`."""
    return frozenset().union(*(rules(engine).unsalted for engine in engines)) if engines else UNKNOWN.unsalted


def rules(engine: str | None) -> EngineRules:
    """The rules of the engine with this name in Hello or configuration."""
    return UNKNOWN if engine is None else ENGINES.get(engine.lower(), UNKNOWN)
