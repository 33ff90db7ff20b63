"""The policies that a pool's configuration can name."""

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
from gateway.routing.policies.facts import Policy
from warmroute.config.setting_types import PolicyName

POLICIES: Final[Mapping[PolicyName, Policy]] = {
    "warm": warm.choose,
    "round_robin": round_robin.choose,
    "least_requests": least_requests.choose,
    "power_of_two": power_of_two.choose,
    "consistent_hash": consistent_hash.choose,
    "prefix_only": prefix_only.choose,
    "lmetric": lmetric.choose,
}
