"""Workers at fixed addresses."""

from __future__ import annotations

from gateway.routing.census.targets import Target
from warmroute.config.pool import StaticWorker


def static_targets(workers: tuple[StaticWorker, ...]) -> tuple[Target, ...]:
    """The targets of a pool's `workers`, one an address: the address is the identity."""
    targets: dict[str, Target] = {}
    for worker in workers:
        host, _, port = worker.address.rpartition(":")
        targets[worker.address] = Target(
            uid=worker.address, host=host.strip("[]"), port=int(port), worker_id=worker.worker_id
        )
    return tuple(targets.values())
