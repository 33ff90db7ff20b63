"""The policies that a pool's configuration can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.routing import least_requests, round_robin, warm
from gateway.routing.facts import Policy
from warmroute.setting_types import PolicyName

POLICIES: Final[Mapping[PolicyName, Policy]] = {
    "warm": warm.choose,
    "round_robin": round_robin.choose,
    "least_requests": least_requests.choose,
}
