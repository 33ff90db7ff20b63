"""Which replica of the indexer a stream goes to.

Names are resolved here and not by grpc, whose channel would keep to the first address that answers: a worker that is
sent away must reach another replica, and workers must spread over all of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warmroute.process.addresses import resolve

RESOLVE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One address of an indexer, and the configured name behind it, which its certificate carries."""

    address: str
    name: str


class UnresolvedError(Exception):
    """None of the configured names has an address now; the message names them."""


class Replicas:
    """The replicas behind configured `host:port` names, taken at random; those that did not work come last.

    Bounded by the addresses that the names resolve to.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._shunned: set[str] = set()

    async def choose(self) -> Replica:
        """A replica to try; all are tried before one that was shunned is tried again. Raises UnresolvedError."""
        found = await self._resolve()
        fresh = [replica for replica in found if replica.address not in self._shunned]
        if not fresh:
            self._shunned.clear()
            fresh = found
        return random.choice(fresh)

    def shun(self, replica: Replica) -> None:
        """It refused, failed, or is ending."""
        self._shunned.add(replica.address)

    def forgive(self) -> None:
        """One works: whatever did not work before may work again too."""
        self._shunned.clear()

    async def _resolve(self) -> list[Replica]:
        found: dict[str, Replica] = {}
        problems: list[str] = []
        for name in self.names:
            try:
                addresses = await resolve(name, RESOLVE_SECONDS)
            except (OSError, TimeoutError) as error:
                problems.append(f"{name} does not resolve: {error or 'no answer'}")
                continue
            for address in addresses:
                found.setdefault(address, Replica(address, name))
        if not found:
            raise UnresolvedError("; ".join(problems))
        return list(found.values())
