"""What a replay is run with."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.replay.machine import MACHINES, Machine
from warmroute.config.pool import PoolConfig, Weights
from warmroute.config.setting_types import PolicyName


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """A policy and what it is run with; `label` is what tables call it."""

    label: str
    policy: PolicyName
    weights: Weights = field(default_factory=Weights)
    in_tokens: bool = False

    def pool(self, name: str) -> PoolConfig:
        """The pool's configuration of a gateway that routes so."""
        return PoolConfig(
            name=name,
            model=name,
            policy=self.policy,
            weights=self.weights,
            cost="tokens" if self.in_tokens else "auto",
        )


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The simulated deployment. Times in seconds.

    `speed` compresses an open trace's arrivals; `sessions` is how many of a closed trace's run at a time.
    `slow_workers` of the workers take `slow_factor` times as long for everything. `shared`: whether gateways tell each
    other what they have in flight. `index_lag`: from a change in a cache to the gateways' index; `report_every` and
    `report_lag`: the workers' load reports. `publishes_events` false: approximate mode.
    """

    workers: int = 8
    machine: Machine = MACHINES["8b"]
    speed: float = 1.0
    sessions: int = 200
    gateways: int = 1
    shared: bool = True
    index_lag: float = 0.1
    report_every: float = 0.1
    report_lag: float = 0.05
    slow_workers: int = 0
    slow_factor: float = 2.0
    publishes_events: bool = True
    seed: int = 0
