"""SGLang. Extra fields are ignored by its schemas, except for the type of `session_id` and `priority`."""

from __future__ import annotations

from typing import Final

from gateway.engines.base import MESSAGES, POOLING, Dialect

STEERS: Final = frozenset(
    {
        "bootstrap_host",
        "bootstrap_pair_key",
        "bootstrap_port",
        "bootstrap_room",
        "custom_logit_processor",
        "data_parallel_rank",
        "decode_tp_size",
        "disagg_prefill_dp_rank",
        "extra_key",  # a cache of its own, which the index would not know of
        "rid",  # of two requests with one id, one gets the other's reply
        "routed_dp_rank",
        "session_params",
    }
)
DIALECT: Final = Dialect(unsalted=MESSAGES | POOLING, takes_priority=True, steers=STEERS)
