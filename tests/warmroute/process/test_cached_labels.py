"""Children of labelled metrics found by one lookup say what prometheus_client's own say."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from warmroute.process import cached_labels
from warmroute.process.cached_labels import Counter, Histogram


def test_a_child_is_found_again_and_gone_once_removed() -> None:
    registry = CollectorRegistry()
    counter = Counter("answers", "Answers.", ["pool", "code"], registry=registry)
    child = counter.labels("a", "200")
    assert counter.labels("a", "200") is child
    assert counter.labels(pool="a", code="200") is child
    child.inc()
    counter.remove("a", "200")
    assert registry.get_sample_value("answers_total", {"pool": "a", "code": "200"}) is None
    counter.labels("a", "200").inc(2)
    assert registry.get_sample_value("answers_total", {"pool": "a", "code": "200"}) == 2
    counter.remove_by_labels({"pool": "a"})
    counter.labels("a", "200").inc(3)
    assert registry.get_sample_value("answers_total", {"pool": "a", "code": "200"}) == 3
    counter.clear()
    assert registry.get_sample_value("answers_total", {"pool": "a", "code": "200"}) is None
    assert counter.labels("a", "200") is not child


def test_histograms_and_metrics_without_labels() -> None:
    registry = CollectorRegistry()
    waits = Histogram("waits", "Waits.", ["pool"], buckets=(1, 2), registry=registry)
    for _ in range(3):
        waits.labels("a").observe(1.5)
    assert registry.get_sample_value("waits_bucket", {"pool": "a", "le": "2.0"}) == 3
    Counter("plain", "Plain.", registry=registry).inc()
    assert registry.get_sample_value("plain_total") == 1


def test_wrong_labels_are_refused_and_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter("answers", "Answers.", ["pool"], registry=CollectorRegistry())
    with pytest.raises(ValueError, match="label"):
        counter.labels("a", "b")
    monkeypatch.setattr(cached_labels, "CACHED_CHILDREN", 2)
    children = [counter.labels(str(number)) for number in range(4)]
    assert [counter.labels(str(number)) for number in range(4)] == children
    assert counter._found is not None
    assert len(counter._found) == 2
