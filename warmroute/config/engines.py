"""The engines that Warmroute knows, one line each.

Settings, `warmroute agent`, gateways and the chart's schema are made from this list; a test checks documentation, chart
and tests against it. CONTRIBUTING.md says how an engine is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine."""

    name: str
    """As settings and Hello have it."""
    title: str
    """Its section in docs/engines.md."""
    adapter: str | None
    """Its module in `worker.adapters.engines`; None where it publishes its blocks itself, without an agent."""
    dialect: str | None
    """Its module in `gateway.engines`; None where nothing is known of what it makes of requests."""
    in_chart: bool = True
    """Whether the chart runs it, as a value of `pool.engine`."""


ENGINES: Final = (
    EngineEntry("vllm", "vLLM", adapter="vllm", dialect="vllm"),
    EngineEntry("sglang", "SGLang", adapter="sglang", dialect="sglang"),
    EngineEntry("tensorrt-llm", "TensorRT-LLM", adapter="tensorrt_llm", dialect="tensorrt_llm"),
    EngineEntry("builtin", "The built-in engine", adapter=None, dialect="builtin"),
    EngineEntry("openai", "Any other engine", adapter="generic", dialect=None, in_chart=False),
)

AGENT_ENGINES: Final = {entry.name: entry.adapter for entry in ENGINES if entry.adapter is not None}
"""Name -> module, of the engines that an agent can stand beside."""
POOL_ENGINES: Final = {entry.name: entry.dialect for entry in ENGINES if entry.dialect is not None}
"""Name -> module, of the engines whose requests the gateway knows."""

CHART_ENGINES: Final = tuple(entry.name for entry in ENGINES if entry.in_chart)
"""Names of the engines that the chart runs."""

if TYPE_CHECKING:
    AgentEngineName = str
    EngineName = str
else:
    # The choices that settings accept, and name where another is given.
    AgentEngineName = Literal[tuple(AGENT_ENGINES)]
    EngineName = Literal[tuple(POOL_ENGINES)]
