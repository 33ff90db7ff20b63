"""A gateway's own decision log (`gateway.routing.decision_log`) as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.replay.trace import Trace, TraceRequest
from gateway.routing.decision_log import LoggedDecision

REPLY_TOKENS: Final = 256
"""Of a reply whose length was not logged."""


def is_logged(row: Mapping[str, Any]) -> bool:
    return "v" in row and "prompt_tokens" in row and "keys" in row


def read_logged(name: str, rows: Iterable[Mapping[str, Any]], *, context_limit: int) -> Trace:
    """All of the log's requests, of all its pools. Raises ValueError for lines that are none, and for a log of pools
    whose blocks differ in size."""
    requests: list[TraceRequest] = []
    block_tokens = left_out = 0
    start: float | None = None
    for row in rows:
        decision = LoggedDecision.from_fields(row)
        start = decision.time if start is None else start
        block_tokens = block_tokens or decision.block_tokens
        if decision.block_tokens != block_tokens:
            raise ValueError(
                f"block_tokens is {decision.block_tokens}, and {block_tokens} before: replay each pool's lines alone"
            )
        reply = REPLY_TOKENS if decision.reply_tokens is None else max(1, decision.reply_tokens)
        if decision.prompt_tokens + reply > context_limit:
            left_out += 1
            continue
        keys = list(decision.keys[: decision.prompt_tokens // block_tokens])
        requests.append(TraceRequest(decision.time - start, decision.prompt_tokens, reply, keys, decision.session))
    # Lines are written as requests end.
    requests.sort(key=lambda request: request.at)
    return Trace(name, block_tokens or 1, requests, left_out=left_out)
