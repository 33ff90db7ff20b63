"""The policies that a pool's configuration can name; `PolicyName` and the chart's schema have the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.routing.policies import (
    consistent_hash,
    least_requests,
    lmetric,
    power_of_two,
    prefix_only,
    round_robin,
    warm,
)
from gateway.routing.policies.policy import Policy
from warmroute.config.setting_types import PolicyName

POLICIES: Final[Mapping[PolicyName, Policy]] = {
    policy.name: policy
    for policy in (
        warm.POLICY,
        round_robin.POLICY,
        least_requests.POLICY,
        power_of_two.POLICY,
        consistent_hash.POLICY,
        prefix_only.POLICY,
        lmetric.POLICY,
    )
}
