"""vLLM. Extra fields are ignored by its schemas, except for the type of `session_id` and `priority`."""

from __future__ import annotations

from typing import Final

from gateway.engines.base import MESSAGES, Dialect

STEERS: Final = frozenset(
    {"data_parallel_rank", "ec_transfer_params", "kv_transfer_params", "logits_processors", "vllm_xargs"}
)
DIALECT: Final = Dialect(unsalted=MESSAGES, takes_priority=True, lower_priority_first=True, steers=STEERS, renders=True)
