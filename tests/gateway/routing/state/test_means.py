"""A running mean."""

from __future__ import annotations

from statistics import fmean

import pytest

from gateway.routing.state.means import LATEST, RunningMean


def test_it_is_the_mean_and_follows_a_change() -> None:
    mean = RunningMean()
    assert mean.value == 0
    values = [3.0, 5.0, 10.0]
    for value in values:
        mean.observe(value)
    assert mean.value == pytest.approx(fmean(values))
    for _ in range(10 * LATEST):
        mean.observe(100.0)
    assert mean.value == pytest.approx(100, rel=0.01)
