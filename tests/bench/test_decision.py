"""The bench of a decision."""

from __future__ import annotations

from bench.decision import measure


def test_the_cost_of_a_decision_is_told_by_workers() -> None:
    costs = measure(workers=(3, 30))
    assert costs.keys() == {"decision_3_workers_us", "decision_30_workers_us"}
    assert all(cost > 0 for cost in costs.values())
