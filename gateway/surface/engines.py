"""How engines differ in the request fields that the gateway understands; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


ENGINES: Final[Mapping[str, EngineRules]] = {
    # Extra fields are ignored by its schemas, except for the type of `session_id` and `priority`.
    "vllm": EngineRules(lower_priority_first=True),
    "sglang": EngineRules(),
    # Its schemas forbid unknown fields; it has `cache_salt`, and `prompt_cache_key` on one path only.
    "tensorrt-llm": EngineRules(rejects=HINTS),
    "builtin": EngineRules(),
}
UNKNOWN: Final = EngineRules()
"""An engine that nobody has named: its requests are left as they are."""


def rules(engine: str | None) -> EngineRules:
    """The rules of the engine with this name in Hello or configuration."""
    return UNKNOWN if engine is None else ENGINES.get(engine.lower(), UNKNOWN)
