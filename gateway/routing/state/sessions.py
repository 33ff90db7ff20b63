"""Sessions: which worker a session's last request went to, a soft hint between workers that cost nearly the same.

    pick = last  where cost(last) <= (1 + near) cost(best) + one request, else best

| symbol | meaning |
|---|---|
| last | the worker that the session's last request went to, while it is a candidate and remembered |
| near | 0.05 for a prompt with keys, whose cost counts what `last` holds; 0.25 without, where nothing shows that |
| one request | 0; where not even the length is known, what a request in flight adds to the cost |

So it decides between idle workers, and never against load: where `last` is busier than that, the session moves to
another worker. A session is whatever a client says belongs together; it identifies nobody, and equal names of two
tenants are two sessions. No I/O; the clock is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import xxhash

from gateway.routing.policies.facts import Decision

NEAR: Final = 0.05
NEAR_WITHOUT_KEYS: Final = 0.25
REMEMBERED_SECONDS: Final = 1800.0
"""Without a request; caches under load forget sooner."""
MOST_SESSIONS: Final = 65_536
"""About 300 bytes each; past it the ones that were silent longest are forgotten."""
NO_SESSION: Final = 0


class SessionOutcome(StrEnum):
    """Where a session's request went; a string, so that it is a metric's label as it is."""

    NEW = "new"
    """No worker is remembered."""
    STAYED = "stayed"
    """To the worker of its last request."""
    MOVED = "moved"
    """To another one."""


def session_key(tenant: str, session: str) -> int:
    """A number for a tenant's session; never NO_SESSION."""
    return xxhash.xxh3_64_intdigest(f"{len(tenant)}:{tenant}{session}".encode("utf-8", "surrogatepass")) or 1


def prefer_session_worker(
    decision: Decision, candidates: Sequence[str], last: str, *, keyed: bool, sized: bool
) -> None:
    """Make the session's last worker the winner where the module's formula says so. `candidates`: their uids, in the
    decision's order. `keyed`: the prompt has keys; `sized`: its length is known."""
    if last not in candidates:
        return
    terms, position = decision.terms, candidates.index(last)
    bound = terms[decision.winner].cost * (1 + (NEAR if keyed else NEAR_WITHOUT_KEYS))
    if not sized:
        requests = sum([term.in_flight for term in terms])
        bound += max(1.0, sum([term.pending_tokens for term in terms]) / requests) if requests else 0.0
    if terms[position].cost <= bound:
        decision.winner = position


class Sessions:
    """The last workers of a pool's sessions. Bounded in number, and by REMEMBERED_SECONDS of silence."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        # The one used last at the end, so that both bounds take from the front.
        self._workers: OrderedDict[int, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._workers)

    def worker_of(self, session: int, now: float) -> str | None:
        """The worker of the session's last request; None where none is remembered."""
        worker, until = self._workers.get(session, (None, now))
        return worker if now < until else None

    def routed(self, session: int, worker: str, now: float) -> SessionOutcome:
        """A request of the session goes to this worker."""
        last = self.worker_of(session, now)
        workers = self._workers
        workers[session] = worker, now + REMEMBERED_SECONDS
        workers.move_to_end(session)
        while len(workers) > self._most or next(iter(workers.values()))[1] <= now:
            workers.popitem(last=False)
        if last is None:
            return SessionOutcome.NEW
        return SessionOutcome.STAYED if last == worker else SessionOutcome.MOVED
