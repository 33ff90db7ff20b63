"""The gauges show a pool as it is when it is scraped."""

from __future__ import annotations

import pytest

from gateway.http.outcome import Outcome
from gateway.routing.gauges import publish_gauges
from tests.gateway.routing.support import Pool, prompt


def test_predictions_expire_without_traffic() -> None:
    pool = Pool()
    assignment = pool.assign(prompt(640))
    assignment.first_byte()
    assignment.close(Outcome.COMPLETED)
    pool.now += 3
    publish_gauges(pool.router)
    assert pool.metric("warmroute_mirror_predicted_keys", pool="p") == 0


@pytest.mark.parametrize("state", ["ready", "unhealthy"])
def test_gauges(state: str) -> None:
    pool = Pool(("a", "b"))
    if state == "unhealthy":
        for worker in pool.router.census.workers.all:
            worker.checked(0, healthy=False, refused=True)
    assignment = pool.assign(prompt(640))
    publish_gauges(pool.router)
    assert pool.metric("warmroute_gateway_workers", pool="p", state=state) == 2
    name = assignment.worker_id
    assert pool.metric("warmroute_gateway_pending_tokens", pool="p", worker=name) == 640
    assert pool.metric("warmroute_gateway_in_flight_requests", pool="p", worker=name) == 1
    assert pool.metric("warmroute_mirror_predicted_keys", pool="p") == 10
    assignment.close(Outcome.CLIENT_GONE)
    publish_gauges(pool.router)
    assert pool.metric("warmroute_gateway_in_flight_requests", pool="p", worker=name) == 0
    assert pool.metric("warmroute_gateway_worker_requests_total", pool="p", worker=name, outcome="client_gone") == 1
