"""Which of a pool's workers a request may go to, before any cost is looked at."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Final

from gateway.routing.census.workers import Worker, WorkerTable
from gateway.routing.state.sessions import NO_SESSION


@dataclass(slots=True)  # not frozen: see gateway.routing.policies.facts
class Constraints:
    """Which workers a request may go to or should, beside what the prompt's blocks say."""

    adapter: str = ""
    """Workers that serve it, as far as they say; "" for the base model."""
    only: str | None = None
    """The worker with this uid and no other."""
    within: AbstractSet[str] | None = None
    """None but these, by uid."""
    session: int = NO_SESSION
    """Preferably the worker of the session's last request, see `gateway.routing.state.sessions`."""


NO_CONSTRAINTS: Final = Constraints()


def candidates(
    table: WorkerTable,
    late: AbstractSet[str],
    exclude: AbstractSet[str],
    constraints: Constraints,
    now: float,
    random: Random,
    filtered: dict[str, str] | None = None,
) -> list[Worker]:
    """The workers to choose from. `late`: ids in the index whose entries do not count now. `exclude`: uids that were
    tried.

    Ejected workers are asked only when no ready one is left to try, unhealthy ones only when there is no other at all:
    the answer of a doubtful worker is better than an error. One that starts slowly takes part in some draws of
    `random`. `filtered` takes why each other worker, by uid, is no candidate.
    """
    workers = table.all
    if constraints.only is not None or constraints.within is not None:
        named = [worker for worker in workers if _is_named(worker.uid, constraints)]
        workers = _kept(workers, named, "pinned to another", filtered)
        if constraints.only is not None:
            return _kept(workers, [each for each in workers if each.uid not in exclude], "excluded", filtered)
    elif constraints.adapter:
        workers = _kept(workers, _serving(workers, constraints.adapter, exclude), "adapter not loaded", filtered)
    if table.ranked:
        workers = _kept(workers, _reachable_ranks(table, workers, late, exclude), "rank not reachable", filtered)
    healthy = [worker for worker in workers if worker.healthy]
    best = [worker for worker in healthy if worker.ejected_until <= now]
    if not best or (exclude and all(worker.uid in exclude for worker in best)):
        best = healthy or workers
    if filtered is not None:
        filtered |= {worker.uid: worker.state(now).value for worker in workers if worker not in best}
    untried = best
    if exclude:
        untried = _kept(best, [each for each in best if each.uid not in exclude], "excluded", filtered)
    warm = [worker for worker in untried if worker.warm_at <= now]
    if not warm or len(warm) == len(untried):
        return untried
    drawn = [worker for worker in untried if worker.warm_at <= now or random.random() < worker.share(now)]
    return _kept(untried, drawn, "slow start", filtered)


def _is_named(uid: str, constraints: Constraints) -> bool:
    return (constraints.only is None or uid == constraints.only) and (
        constraints.within is None or uid in constraints.within
    )


def _serving(workers: list[Worker], adapter: str, exclude: AbstractSet[str]) -> list[Worker]:
    """Those that have the adapter loaded; else those that have not said what they have; else all, since an engine may
    load it on demand."""
    loaded = [worker for worker in workers if worker.facts is not None and adapter in worker.facts.adapters]
    silent = [worker for worker in workers if worker.facts is None]
    for some in (loaded, silent):
        if any(worker.healthy and worker.uid not in exclude for worker in some):
            return some
    return loaded or silent or workers


def _reachable_ranks(
    table: WorkerTable, workers: list[Worker], late: AbstractSet[str], exclude: AbstractSet[str]
) -> list[Worker]:
    """Without ranks that their engine no longer has; and not the engine that failed, if there is another."""
    if late:
        workers = table.without_lost_ranks(workers, late)
    failed = {tried.target.address for uid in exclude if (tried := table.get(uid)) is not None}
    others = [worker for worker in workers if worker.target.address not in failed] if failed else workers
    return others if any(worker.healthy for worker in others) else workers


def _kept(before: list[Worker], after: list[Worker], reason: str, filtered: dict[str, str] | None) -> list[Worker]:
    """`after`; the reason is noted for who is in `before` alone, where somebody asks."""
    if filtered is not None:
        filtered |= {worker.uid: reason for worker in before if worker not in after}
    return after
