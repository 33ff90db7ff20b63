"""TensorRT-LLM. Its schemas forbid unknown fields. It has `cache_salt`, and `prompt_cache_key` on one path only. A path
that takes no salt refuses it."""

from __future__ import annotations

from typing import Final

from gateway.engines.base import HINTS, Dialect

STEERS: Final = frozenset({"disaggregated_params", "lora_request"})
DIALECT: Final = Dialect(rejects=HINTS, steers=STEERS)
