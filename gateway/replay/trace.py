"""A trace of requests, whatever it was read from, and the hit rate that no routing can exceed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

WARM_UP_SHARE: Final = 0.1
"""The first requests fill empty caches; no figure counts them."""


@dataclass(slots=True)
class TraceRequest:
    """One request. `keys` name its full blocks and all before them, so that equal keys mean an equal prefix.

    `at`: arrival in seconds from the trace's begin. In a session only the first request has a use for it: `following`
    comes `think_seconds` after the reply's end.
    """

    at: float
    prompt_tokens: int
    reply_tokens: int
    keys: list[int]
    session: str = ""
    think_seconds: float = 0.0
    following: TraceRequest | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """All requests in order of arrival, or the first requests of sessions (`closed`), where a new session begins as
    one ends. `left_out`: requests that the reader dropped, being longer than the limit that it was given; `damaged`:
    lines that it could not read, of a log that was cut off or whose disk was full."""

    name: str
    block_tokens: int
    requests: Sequence[TraceRequest]
    closed: bool = False
    left_out: int = 0
    damaged: int = 0

    @property
    def seconds(self) -> float:
        """From the first arrival to the last, as recorded; 0 for sessions, whose requests wait for replies."""
        return 0.0 if self.closed or not self.requests else self.requests[-1].at - self.requests[0].at

    def all_requests(self) -> Iterator[TraceRequest]:
        """Every request, sessions one after another."""
        for first in self.requests:
            request: TraceRequest | None = first
            while request is not None:
                yield request
                request = request.following

    def __len__(self) -> int:
        return sum(1 for _ in self.all_requests())


def infinite_cache_hit_rate(trace: Trace) -> float:
    """Share of prompt tokens that one endless cache would have: every block is computed once.

    In order of arrival, without the first `WARM_UP_SHARE` of the requests.
    """
    requests = list(trace.all_requests())
    seen: set[int] = set()
    cached = total = 0
    for number, request in enumerate(requests):
        blocks = 0
        for key in request.keys:
            if key not in seen:
                break
            blocks += 1
        seen.update(request.keys)
        if number >= WARM_UP_SHARE * len(requests):
            cached += min(blocks * trace.block_tokens, request.prompt_tokens - 1)
            total += request.prompt_tokens
    return cached / total if total else 0.0
