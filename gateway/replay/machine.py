"""What the simulated workers' machines take: prefill, decode steps and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Machine:
    """Costs of one worker, in seconds and tokens.

    A prefill of u tokens behind h cached ones takes `prefill_fixed + prefill_token * u + prefill_pair * u * (h + u/2)`.
    A decode step takes `step_fixed + step_stream * streams + step_kv_token * their KV tokens`, and a chunk of prefill
    more while a prompt is computed.
    """

    prefill_fixed: float
    prefill_token: float
    prefill_pair: float
    step_fixed: float
    step_stream: float
    step_kv_token: float
    cache_tokens: int
    chunk_tokens: int = 2048
    max_streams: int = 256

    def prefill(self, uncached: int, cached: int) -> float:
        """Seconds for a prompt on a worker that does nothing else."""
        context = cached + uncached / 2
        return self.prefill_fixed + (self.prefill_token + self.prefill_pair * context) * uncached

    @property
    def chunk_seconds(self) -> float:
        return self.chunk_tokens * self.prefill_token


MACHINES: Final[Mapping[str, Machine]] = {
    # One GPU of the A100 or H100 class; the larger models on several. Ratios matter here, not the absolute seconds.
    "8b": Machine(0.005, 36e-6, 1.2e-9, 0.007, 4e-5, 5.6e-11, 327_680),
    "70b": Machine(0.010, 89e-6, 1.7e-9, 0.015, 5e-5, 3.4e-11, 460_800),
    "moe": Machine(0.015, 30e-6, 0.5e-9, 0.020, 1e-4, 1.0e-11, 2_097_152, chunk_tokens=4096),
}
