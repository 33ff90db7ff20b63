"""Which pods are workers that requests may go to. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.routing.census.targets import Target

Pod = Mapping[str, Any]
"""A pod as the API server writes it in JSON."""

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})


def pod_target(pod: Pod, port: int) -> Target | None:
    """The place behind this pod, or None while requests must not go there.

    In: it has an address, its Ready condition is True, it has not been told to end. `port` is the engine's.
    """
    metadata = pod["metadata"]
    status = pod.get("status") or {}
    # An address appears after scheduling and is cleared again when a node loses the pod's sandbox.
    host = status.get("podIP")
    if not host:
        return None
    # A terminating pod stays Ready until its last probe fails, long after it refuses new requests.
    if metadata.get("deletionTimestamp"):
        return None
    # An evicted or completed pod keeps its podIP, which may be another pod's by now.
    if status.get("phase") in FINISHED_PHASES:
        return None
    # Absent on a pod that the kubelet has not reported yet; "Unknown" when its node is silent.
    conditions = status.get("conditions") or ()
    if not any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
        return None
    uid = metadata["uid"]
    return Target(uid=uid, host=host, port=port, worker_id=uid, name=metadata["name"])


class PodSet:
    """The targets of one namespace and selector, kept from a list and the events after it.

    Bounded by the pods that match the selector: a list replaces everything, and a name holds one pod at a time.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._targets: dict[str, Target] = {}
        """By pod name. Kubernetes never has two pods of one name in a namespace, so a StatefulSet's successor pushes
        out a predecessor whose DELETED was lost."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets, in the order of their UIDs."""
        return tuple(sorted(self._targets.values(), key=lambda target: target.uid))

    def replace(self, pods: Iterable[Pod]) -> bool:
        """Take a complete list; what it lacks is gone, whatever events were missed. True when a target changed."""
        found = (pod_target(pod, self._port) for pod in pods)
        targets = {target.name: target for target in found if target is not None}
        changed = targets != self._targets
        self._targets = targets
        return changed

    def apply(self, kind: str, pod: Pod) -> bool:
        """Take one watch event (ADDED, MODIFIED, DELETED). True when a target changed.

        A pod that leaves the label selector arrives as DELETED, with the labels and the readiness it has by then.
        """
        name = pod["metadata"]["name"]
        before = self._targets.get(name)
        if kind == "DELETED":
            # The name may belong to a successor by now: the UID says whose end this is.
            if before is None or before.uid != pod["metadata"]["uid"]:
                return False
            del self._targets[name]
            return True
        after = pod_target(pod, self._port)
        if after is None:
            return self._targets.pop(name, None) is not None
        self._targets[name] = after
        return after != before
