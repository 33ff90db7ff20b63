"""SGLang. Extra fields are ignored by its schemas, except for the type of `session_id` and `priority`."""

from __future__ import annotations

from typing import Final

from gateway.engines.base import MESSAGES, POOLING, Dialect

DIALECT: Final = Dialect(unsalted=MESSAGES | POOLING, takes_priority=True)
