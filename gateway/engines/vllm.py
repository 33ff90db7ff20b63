"""vLLM. Extra fields are ignored by its schemas, except for the type of `session_id` and `priority`."""

from __future__ import annotations

from typing import Final

from gateway.engines.base import MESSAGES, Dialect

DIALECT: Final = Dialect(unsalted=MESSAGES, takes_priority=True, lower_priority_first=True, renders=True)
