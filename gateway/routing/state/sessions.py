"""Sessions: where a session's requests went last, as a soft hint between workers that cost nearly the same.

    pick = home  where cost(home) <= (1 + near) cost(best) + one request, else best

| symbol | meaning |
|---|---|
| home | the worker that the session's last request went to, while it is a candidate and remembered |
| near | 0.05 for a prompt with keys, whose cost counts what home holds; 0.25 without: nothing else tells who has it |
| one request | 0; where not even the length is known, what a request in flight adds to the cost |

So it decides between idle workers, and never against load: what it picks is nearly the best, and where home is busier
than that the session gets another home. A session is whatever a client says that belongs together; it identifies
nobody, and equal names of two tenants are two sessions. No I/O; the clock is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
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


class Stay(StrEnum):
    """Where a session's request went; a string, so that it is a metric's label as it is."""

    NEW = "new"
    STAYED = "stayed"
    MOVED = "moved"


def session_key(tenant: str, session: str) -> int:
    """A number for a tenant's session; never NO_SESSION."""
    return xxhash.xxh3_64_intdigest(f"{len(tenant)}:{tenant}{session}".encode("utf-8", "surrogatepass")) or 1


def preferred(decision: Decision, home: int, *, keyed: bool, sized: bool) -> int:
    """The position to pick, given the position of the session's home; see the module's formula. `keyed`: the prompt has
    keys; `sized`: its length is known."""
    terms = decision.terms
    bound = terms[decision.winner].cost * (1 + (NEAR if keyed else NEAR_WITHOUT_KEYS))
    if not sized:
        requests = sum([term.in_flight for term in terms])
        bound += max(1.0, sum([term.pending_tokens for term in terms]) / requests) if requests else 0.0
    return home if terms[home].cost <= bound else decision.winner


class Sessions:
    """The homes of a pool's sessions. Bounded in number, and by REMEMBERED_SECONDS of silence."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        # The one used last at the end, so that both bounds take from the front.
        self._homes: OrderedDict[int, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, session: int, now: float) -> str | None:
        """The worker of the session's last request."""
        worker, until = self._homes.get(session, (None, now))
        return worker if now < until else None

    def used(self, session: int, worker: str, now: float) -> Stay:
        """A request of the session goes to this worker."""
        home = self.home(session, now)
        homes = self._homes
        homes[session] = worker, now + REMEMBERED_SECONDS
        homes.move_to_end(session)
        while len(homes) > self._most or next(iter(homes.values()))[1] <= now:
            homes.popitem(last=False)
        return Stay.NEW if home is None else Stay.STAYED if home == worker else Stay.MOVED
