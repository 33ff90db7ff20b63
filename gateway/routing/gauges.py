"""The gauges that show a pool's workers and what is booked on them; set before each scrape."""

from __future__ import annotations

from collections import Counter

from gateway.routing.census.workers import State
from gateway.routing.router import PoolRouter


def publish_gauges(router: PoolRouter) -> None:
    """Set them to what holds now."""
    pool, now, metrics = router.config.name, router.clock(), router.metrics
    census, state = router.census.current(), router.state
    workers = census.workers.all
    state.predictions.expire(now)
    states = Counter(worker.state(now) for worker in workers)
    for each in State:
        metrics.workers.labels(pool, each.value).set(states[each])
    metrics.unjoined_workers.labels(pool).set(census.workers.unjoined)
    metrics.approximate_workers.labels(pool).set(census.approximate)
    metrics.rated_workers.labels(pool).set(sum(state.rates.rate(worker.uid) is not None for worker in workers))
    late = state.index.late
    metrics.late_workers.labels(pool).set(sum(worker.index_id in late for worker in workers))
    metrics.unreported_workers.labels(pool).set(state.unreported(workers, now))
    metrics.predicted_keys.labels(pool).set(state.predictions.keys)
    for worker in workers:
        booked = state.reservations.of(worker.uid)
        metrics.in_flight_requests.labels(pool, worker.name).set(booked.requests)
        metrics.pending_tokens.labels(pool, worker.name).set(booked.pending_tokens)
