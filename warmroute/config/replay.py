"""The settings of `warmroute replay`: the deployment that it simulates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from warmroute.config.setting_types import Name, Section


class ReplayConfig(Section):
    """A trace through simulated workers, once for each policy."""

    policy: tuple[Name, ...] = Field(
        ("warm", "lmetric", "consistent_hash", "least_requests", "power_of_two", "round_robin"),
        min_length=1,
        description="policies to compare; warm:tokens keeps its cost in tokens, warm:g=2:w=0.5 sets weights",
    )
    workers: int = Field(8, ge=1, le=512, description="simulated workers")
    machine: Literal["8b", "70b", "moe"] = Field(
        "8b",
        description="what a worker is like: a dense model of 8 B or 70 B, or a mixture of experts with a huge cache",
    )
    prefill_tokens_per_second: float | None = Field(
        None,
        gt=0,
        le=1e7,
        description="prompt tokens that one worker computes in a second; the machine's when left out",
    )
    cache_tokens: int | None = Field(
        None, ge=1024, description="tokens that a worker's KV cache holds; the machine's when left out"
    )
    slow_workers: int = Field(0, ge=0, description="how many of the workers are slower than the others")
    slow_factor: float = Field(2.0, ge=1, le=100, description="how many times as long they take for everything")
    speed: float = Field(1.0, gt=0, le=1000, description="how much faster than recorded requests arrive")
    sessions: int = Field(200, ge=1, description="sessions that run at a time, for a trace of sessions")
    gateways: int = Field(1, ge=1, le=64, description="gateways that requests are spread over")
    shared: bool = Field(True, description="whether the gateways tell each other what they have in flight")
    events: bool = Field(True, description="whether workers say what they cache; false: gateways guess it")
    index_lag_seconds: float = Field(0.1, ge=0, le=60, description="from a change of a cache to the gateways' index")
    report_seconds: float = Field(0.1, gt=0, le=60, description="time between two load reports of a worker")
    report_lag_seconds: float = Field(0.05, ge=0, le=60, description="from a report to the gateways")
    context_limit: int = Field(
        120_000, ge=1, description="longest prompt and reply, in tokens; longer requests are left out, and counted"
    )
    seed: int = Field(0, ge=0, description="seed of all that is drawn: ties, and which gateway gets a request")
    runs: int = Field(1, ge=1, le=100, description="runs of each policy, each with the next seed; the table has means")
