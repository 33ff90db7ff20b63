"""What discovery finds: the places that requests may go to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warmroute.process.addresses import address


@dataclass(frozen=True, slots=True)
class Target:
    """One worker as discovery sees it.

    `uid` is the identity: the pod's UID, or the address itself for a static target. `worker_id` is what the worker
    calls itself towards the index where discovery can know it (the pod's UID); None joins by address. `rank`: which
    data-parallel rank of an engine it is, where the engine has several behind one address (`census.ranks`).
    """

    uid: str
    host: str
    port: int
    worker_id: str | None = None
    name: str = ""
    rank: int | None = None

    @property
    def address(self) -> str:
        """host:port, as workers write it."""
        return address(self.host, self.port)


OnTargets = Callable[[tuple[Target, ...]], None]
"""Takes the complete set of targets each time it changes."""
