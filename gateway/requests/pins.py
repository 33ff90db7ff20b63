"""Requests that say where they go: to one worker, or to one data-parallel rank of whichever engine.

    X-Warmroute-Worker: NAME        a worker by its name, as replies tell it, by its uid, address or id in the index;
                                    an engine's name means any of its ranks
    X-Data-Parallel-Rank: N         workers that are rank N of their engine; where a worker has told no rank the header
                                    goes to the engine as it is

For tests, benchmarks and engines' own tools. Both are hard: no other worker is asked, not even for a retry. No I/O.
"""

from __future__ import annotations

from typing import Final

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.routing.census.ranks import MOST_RANKS, RANK_HEADER
from gateway.routing.census.workers import Worker
from gateway.routing.router import PoolRouter
from gateway.tenants.tenant import Tenant

WORKER_HEADER: Final = b"x-warmroute-worker"
_HEADERS: Final = frozenset({WORKER_HEADER, RANK_HEADER})
_SHOWN: Final = 200
"""Characters of a header's value that an error repeats."""
_NAMED: Final = 10
"""Workers that an error names."""


def pinned(request: Request, router: PoolRouter, tenant: Tenant) -> frozenset[str] | None:
    """The uids of the workers that the request may go to; None where it says nothing, or the pool has no worker. Raises
    RequestError."""
    if _HEADERS.isdisjoint(request.first_values):
        return None  # most requests
    workers = router.census.current().workers.all
    allowed = router.config.pinning
    if not (tenant.anonymous if allowed is None else allowed):
        message = (
            "the headers X-Warmroute-Worker and X-Data-Parallel-Rank are switched off here: leave them out, or ask the "
            "operator of this gateway to set pinning for this pool"
        )
        raise RequestError(403, message, "pinning_off")
    if not workers:
        return None
    wanted = []
    if (name := request.header(WORKER_HEADER)) is not None:
        wanted.append(f"X-Warmroute-Worker: {_shown(name)}")
        known, workers = workers, [worker for worker in workers if name.decode("latin-1") in _names(worker)]
        if not workers:
            raise _unknown(wanted[-1], "worker", [worker.name for worker in known])
    if (rank := request.header(RANK_HEADER)) is not None:
        wanted.append(f"X-Data-Parallel-Rank: {_shown(rank)}")
        number = int(rank) if rank.isdigit() and len(rank) <= len(str(MOST_RANKS)) else None
        ranks = sorted({worker.target.rank for worker in workers if worker.target.rank is not None})
        if number is None or (number not in ranks and all(worker.target.rank is not None for worker in workers)):
            raise _unknown(wanted[-1], "rank", list(map(str, ranks)))
        workers = [worker for worker in workers if worker.target.rank == number] or [
            worker for worker in workers if worker.target.rank is None
        ]
    if not any(worker.healthy for worker in workers):
        message = f"{', '.join(wanted)} asks for a worker that is not ready: try again later, or leave the header out"
        raise RequestError(503, message, "worker_not_ready", headers=((b"retry-after", b"1"),))
    return frozenset([worker.uid for worker in workers])


def _unknown(header: str, kind: str, known: list[str]) -> RequestError:
    names = ", ".join(sorted(known)[:_NAMED]) or "none told"
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return RequestError(400, f"{header} names no {kind} of this model; there are: {names}{more}", f"unknown_{kind}")


def _names(worker: Worker) -> set[str]:
    target = worker.target
    names = {worker.name, target.uid, target.address, worker.index_id or target.uid}
    if target.rank is not None:
        suffix = f"/dp{target.rank}"
        names |= {name.removesuffix(suffix) for name in names}
    return names


def _shown(value: bytes) -> str:
    return repr(value.decode("latin-1")[:_SHOWN])
