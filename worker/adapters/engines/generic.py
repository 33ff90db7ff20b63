"""Any other engine with OpenAI's API: models, health and, where its metrics have known names, load; no events."""

from __future__ import annotations

from typing import Final

from worker.adapters.engine_metrics import MetricNames
from worker.adapters.engines.base import Engine
from worker.adapters.msgpack_events import TIERS


class Generic(Engine):
    """An engine of which nothing is known but its API."""

    default_block_tokens = 16
    publishes_events = False
    tiers = TIERS
    metrics = MetricNames()


ENGINE: Final = Generic()
