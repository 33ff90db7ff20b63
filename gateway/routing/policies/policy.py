"""What a policy is: a pure function, and a declaration of what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from gateway.routing.policies.facts import CandidateFacts, Decision, RequestFacts
from warmroute.config.pool import Weights
from warmroute.config.setting_types import PolicyName

Choose = Callable[[RequestFacts, Sequence[CandidateFacts], Weights, Random], Decision]
"""Gets at least one candidate. Equal costs are drawn from at random."""

Fact = Literal[
    "sequence",
    "prompt_tokens",
    "affinity",
    "matched_tokens",
    "host_tokens",
    "reserved_tokens",
    "reported_waiting_tokens",
    "in_flight",
    "kv_use",
    "kv_capacity_tokens",
    "rate",
    "slots",
    "eviction",
    "stay_seconds",
    "usual_work_tokens",
]
"""A field of `RequestFacts` or `CandidateFacts`."""

Weight = Literal["g", "w", "host_price", "decode_tokens", "memory_tokens", "context"]
"""A field of `Weights`."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as `registry.POLICIES` has it.

    `facts`: those that its costs depend on; whatever it is, bookings take the prompt's uncached tokens. `weights`:
    those that its costs depend on. `keeps_sessions`: a session's requests go to the worker of its last one where that
    costs nearly the same (`gateway.routing.state.sessions`).
    """

    name: PolicyName
    choose: Choose
    facts: frozenset[Fact] = frozenset()
    weights: frozenset[Weight] = frozenset()
    keeps_sessions: bool = False
