"""What a reply tells of its routing, to a client that asked: one header, at most `LIMIT_BYTES` long."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.routing.router import Choice

NAME: Final = b"x-warmroute-decision"
LIMIT_BYTES: Final = 2048
WORKER_CHARACTERS: Final = 128
"""Of a worker's name; escaped they may take twelve bytes each."""


def decision_header(choice: Choice, policy: str) -> tuple[bytes, bytes]:
    """The winner and its terms, how many there were to choose from, and what the next best would have cost."""
    decision, won = choice.decision, choice.terms
    others = [term.cost for position, term in enumerate(decision.terms) if position != decision.winner]
    fields = {
        "worker": won.worker[:WORKER_CHARACTERS],
        "policy": policy,
        "candidates": len(decision.terms),
        "unit": decision.unit,
        "cost": _short(won.cost),
        "next_cost": _short(min(others)) if others else None,
        "matched_tokens": won.matched_tokens,
        "uncached_tokens": _short(won.uncached_tokens),
        "pending_tokens": _short(won.pending_tokens),
        "in_flight": won.in_flight,
        "decode": _short(won.decode),
        "memory": _short(won.memory),
        "slot_wait": _short(won.slot_wait),
        "eviction": _short(won.eviction),
        "queued": _short(won.queued),
    }
    # ASCII alone: what a header may hold.
    return NAME, json.dumps(fields, separators=(",", ":")).encode("ascii")


def _short(value: float) -> float:
    """Six digits: of a cost in tokens none but the last is lost."""
    return float(f"{float(value):.6g}")
