"""What one worker reports of its load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FRESH_SECONDS: Final = 2.0
"""Reports come every 100 ms, batched every 50; one older than this says nothing about now."""


@dataclass(frozen=True, slots=True)
class Report:
    """One worker's load, when it was measured, in seconds of `time.monotonic`, and which indexer replica sent it."""

    waiting_tokens: int
    running_requests: int
    waiting_requests: int
    kv_cache_usage: float
    measured_at: float
    source: str = ""
    slots: int = 0
    """Sequences that it runs at a time; 0 where that is not known."""
