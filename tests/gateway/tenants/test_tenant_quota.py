"""Gateways with one tenant, by hand-driven clock, against an oracle that has seen every request."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tenants.tenant import Limits
from gateway.tenants.tenant_quota import CLAIM_SECONDS, TenantQuota
from tests.gateway.tenants.support import NaiveLimits


@dataclass
class World:
    """Gateways that share a tenant through the script's twin; `admitted` is the oracle's memory: (seconds, tokens)."""

    limits: Limits
    count: int
    now: float = 1000.0
    redis: NaiveLimits = field(default_factory=NaiveLimits)
    admitted: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.quotas = [TenantQuota(self.limits, self.now) for _ in range(self.count)]

    def call(self, number: int) -> None:
        quota = self.quotas[number]
        refills = quota.refill_request(self.now)
        reply = self.redis.call(int(self.now * 1000), str(number), int(CLAIM_SECONDS * 1000), *refills.arguments())
        quota.granted(refills, reply, self.now)

    def ask(self, number: int, tokens: int) -> bool:
        quota = self.quotas[number]
        if not quota.admit(tokens, self.now):
            with quota.waiting(tokens):
                self.call(number)
            if not quota.admit(tokens, self.now):
                return False
        self.admitted.append((self.now, tokens))
        return True

    def advance(self, seconds: float) -> None:
        """Let time go by as the limiter's ticks do."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            for number, quota in enumerate(self.quotas):
                if quota.active(self.now) and quota.due(self.now):
                    self.call(number)

    def check(self) -> None:
        assert self.limits.concurrent_requests is not None
        assert self.limits.requests_per_minute is not None
        assert self.limits.tokens_per_minute is not None
        assert 0 <= sum(quota.in_use for quota in self.quotas) <= self.limits.concurrent_requests
        for first in range(len(self.admitted)):
            window = self.admitted[first:]
            minutes = 1 + (window[-1][0] - window[0][0]) / 60
            assert len(window) <= self.limits.requests_per_minute * minutes + 1e-3
            assert sum(tokens for _, tokens in window) <= self.limits.tokens_per_minute * minutes + 1e-3


step = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 2), st.integers(1, 120)),
    st.tuples(st.just("release"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("advance"), st.just(0), st.integers(1, 12_000)),
)
limits = st.builds(Limits, st.sampled_from([3, 60, 600]), st.sampled_from([120, 6000]), st.integers(1, 6))


@settings(max_examples=300, deadline=None)
@given(limits, st.lists(step, max_size=60))
def test_all_gateways_together_keep_the_limits(limits: Limits, steps: list[tuple[str, int, int]]) -> None:
    world = World(limits, 3)
    for action, number, value in steps:
        if action == "ask":
            world.ask(number, value)
        elif action == "release" and world.quotas[number].in_use:
            world.quotas[number].release()
        elif action == "advance":
            world.advance(value / 1000)
        world.check()
    # Whatever was before: with nothing running and a minute gone by, any gateway may use the whole limit.
    for quota in world.quotas:
        while quota.in_use:
            quota.release()
    world.advance(61)
    assert limits.tokens_per_minute is not None
    assert world.ask(1, min(120, limits.tokens_per_minute))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(0, 50), st.integers(0, 200))
def test_usage_corrects_the_estimate(count: int, estimated: int, used: int) -> None:
    world = World(Limits(None, 6000, None), count)
    assert world.ask(0, estimated)
    world.quotas[0].settle(estimated, used, world.now)
    world.quotas[0].release()
    for number in range(count):
        world.call(number)
    quota = world.quotas[0]
    assert quota.tokens is not None
    assert quota.tokens.remaining(world.now) == 6000 - used


def test_a_gateway_that_died_frees_its_slots() -> None:
    world = World(Limits(None, None, 2), 2)
    assert world.ask(0, 1)
    assert world.ask(0, 1)
    assert not world.ask(1, 1)
    world.quotas[0] = TenantQuota(world.limits, world.now)  # it calls no more
    world.now += CLAIM_SECONDS - 1
    assert not world.ask(1, 1)
    world.now += 2
    assert world.ask(1, 1)


def test_without_redis_each_gateway_keeps_an_even_share_and_settles_with_it_afterwards() -> None:
    world = World(Limits(60, None, 4), 2)
    for number in (0, 1, 0):
        world.call(number)
    for quota in world.quotas:
        quota.alone(world.now)
    admitted = [sum(quota.admit(1, world.now) for _ in range(100)) for quota in world.quotas]
    assert admitted == [2, 2], "slots"
    for quota in world.quotas:
        for _ in range(50):
            if quota.in_use:
                quota.release()
            quota.admit(1, world.now)
        assert quota.refused(1, world.now) == "requests"
    for number in (0, 1):
        world.call(number)
        assert not world.quotas[number].away
    assert world.redis.balances["r"] == -1, "all 60 are charged; one was leased before the second gateway told"
    assert world.ask(0, 1)
    assert not world.ask(1, 1)
    world.quotas[0].release()
    world.quotas[1].release()
    world.advance(3)
    assert world.ask(1, 1)


def test_changed_limits_apply_at_once() -> None:
    world = World(Limits(60, None, None), 1)
    for _ in range(60):
        assert world.ask(0, 1)
    assert not world.ask(0, 1)
    world.quotas[0].resize(Limits(None, 100, None), world.now)
    assert world.ask(0, 100)
    world.quotas[0].resize(Limits(), world.now)
    assert world.quotas[0].admit(10**6, world.now)


def test_what_redis_said_last_tells_whether_a_limit_is_exhausted() -> None:
    world = World(Limits(requests_per_minute=100, tokens_per_minute=1000, concurrent_requests=3), 2)
    quota, other = world.quotas
    assert world.ask(0, 10)
    assert not quota.exhausted(900, world.now)  # nothing in hand, and there is more
    assert quota.exhausted(1000, world.now)
    assert world.ask(1, 10)
    assert world.ask(1, 10)
    assert not other.exhausted(10, world.now)
    assert not world.ask(0, 10)
    assert quota.exhausted(10, world.now)  # all slots are claimed
    other.release()
    world.advance(4)
    assert world.ask(0, 10)
    assert not world.ask(0, 10)
