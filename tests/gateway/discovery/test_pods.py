"""The pure core of pod discovery: tables of pods, and the set against a naive twin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.discovery.pods import PodSet, pod_target
from gateway.routing.census.targets import Target


def pod(uid: str = "u1", name: str = "worker-a", ready: str | None = "True", **status: Any) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "True"}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready})
    defaults = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions}
    return {"metadata": {"name": name, "uid": uid}, "status": {**defaults, **status}}


def terminating() -> dict[str, Any]:
    ending = pod()
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return ending


def test_a_ready_pod_is_a_target_under_its_uid() -> None:
    expected = Target(uid="u1", host="10.0.0.1", port=8100, worker_id="u1", name="worker-a")
    assert pod_target(pod(), 8100) == expected


def test_an_ipv6_address_is_bracketed() -> None:
    target = pod_target(pod(podIP="fd00::1"), 8100)
    assert target is not None
    assert target.address == "[fd00::1]:8100"


@pytest.mark.parametrize(
    "left_out",
    [
        pytest.param(pod(podIP=None), id="address-cleared"),
        pytest.param(pod(podIP=""), id="address-empty"),
        pytest.param(pod(ready="False"), id="not-ready"),
        pytest.param(pod(ready="Unknown"), id="node-silent"),
        pytest.param(pod(ready=None), id="no-ready-condition"),
        pytest.param(pod(conditions=None), id="conditions-null"),
        pytest.param(pod(phase="Failed"), id="evicted"),
        pytest.param(pod(phase="Succeeded"), id="completed"),
        pytest.param(terminating(), id="terminating-but-ready"),
        pytest.param({"metadata": {"name": "a", "uid": "u"}}, id="no-status"),
        pytest.param({"metadata": {"name": "a", "uid": "u"}, "status": None}, id="status-null"),
    ],
)
def test_left_out(left_out: dict[str, Any]) -> None:
    assert pod_target(left_out, 8100) is None


def test_out_and_in_again() -> None:
    pods = PodSet(8100)
    assert pods.apply("ADDED", pod())
    assert pods.apply("MODIFIED", pod(ready="False"))
    assert pods.targets == ()
    assert not pods.apply("MODIFIED", pod(ready="False"))
    assert pods.apply("MODIFIED", pod())
    assert [target.uid for target in pods.targets] == ["u1"]


def test_a_change_that_routing_cannot_see_is_no_change() -> None:
    pods = PodSet(8100)
    pods.apply("ADDED", pod())
    assert not pods.apply("MODIFIED", pod(message="a new message"))
    assert not pods.replace([pod(message="another")])


def test_a_new_address_is_a_change() -> None:
    pods = PodSet(8100)
    pods.apply("ADDED", pod())
    assert pods.apply("MODIFIED", pod(podIP="10.0.0.9"))
    assert pods.targets[0].address == "10.0.0.9:8100"


def test_a_list_heals_a_lost_deletion() -> None:
    pods = PodSet(8100)
    pods.replace([pod("u1", "a"), pod("u2", "b")])
    assert pods.replace([pod("u2", "b")])
    assert [target.uid for target in pods.targets] == ["u2"]


def test_a_successor_of_the_same_name_replaces_and_survives_a_late_deletion() -> None:
    pods = PodSet(8100)
    pods.apply("ADDED", pod("old", "worker-0"))
    assert pods.apply("ADDED", pod("new", "worker-0"))
    assert not pods.apply("DELETED", pod("old", "worker-0"))
    assert [target.uid for target in pods.targets] == ["new"]


def test_a_pod_that_leaves_the_selector_is_gone_though_ready() -> None:
    pods = PodSet(8100)
    pods.apply("ADDED", pod())
    assert pods.apply("DELETED", pod())
    assert pods.targets == ()


def test_a_deletion_of_the_unknown_is_no_change() -> None:
    assert not PodSet(8100).apply("DELETED", pod())


PODS = st.builds(
    pod,
    uid=st.sampled_from(["u1", "u2", "u3"]),
    name=st.just(""),
    ready=st.sampled_from(["True", "False", None]),
    podIP=st.sampled_from(["10.0.0.1", "10.0.0.2", None]),
    phase=st.sampled_from(["Running", "Failed"]),
)
STEPS = st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED", "LIST"]), PODS), max_size=30)


@given(STEPS)
def test_the_set_equals_its_naive_twin_and_reports_exactly_the_changes(steps: list[tuple[str, dict[str, Any]]]) -> None:
    """The twin keeps whole pods by UID and filters on demand."""
    pods, twin = PodSet(8100), dict[str, dict[str, Any]]()
    for kind, changed in steps:
        uid = changed["metadata"]["uid"]
        changed["metadata"]["name"] = f"name-of-{uid}"
        before = pods.targets
        if kind == "LIST":
            twin = {uid: changed}
            reported = pods.replace([changed])
        else:
            twin.pop(uid, None)
            if kind != "DELETED":
                twin[uid] = changed
            reported = pods.apply(kind, changed)
        expected = [pod_target(known, 8100) for _, known in sorted(twin.items())]
        assert list(pods.targets) == [target for target in expected if target is not None]
        assert reported == (pods.targets != before)
