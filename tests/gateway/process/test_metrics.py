"""What a gateway exposes is what its rooms and the mirror declare, each metric once."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.process.metrics import GatewayMetrics
from tests.metric_owners import metric_owners, series

ROOMS = ("gateway.", "indexer.reader.")
"""The packages whose metrics a gateway counts."""


def test_a_gateway_exposes_the_metrics_of_all_its_rooms() -> None:
    rooms = [owner for owner in metric_owners() if owner.__module__.startswith(ROOMS)]
    assert set(GatewayMetrics.__bases__) == set(rooms)
    assert series(GatewayMetrics) == set().union(*(series(owner) for owner in rooms))


def test_rooms_share_no_metric_and_no_attribute() -> None:
    owners = GatewayMetrics.__bases__
    exposed = vars(GatewayMetrics(CollectorRegistry()))
    assert len(exposed) == sum(len(vars(owner(CollectorRegistry()))) for owner in owners)
    assert len(series(GatewayMetrics)) == sum(len(series(owner)) for owner in owners)
