"""Gateways with one tenant, by hand-driven clock, against an oracle that has seen every request."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tenants.share import CLAIM_SECONDS, Share
from gateway.tenants.tenant import Limits
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
        self.shares = [Share(self.limits, self.now) for _ in range(self.count)]

    def call(self, number: int) -> None:
        share = self.shares[number]
        orders = share.order(self.now)
        reply = self.redis.call(int(self.now * 1000), str(number), int(CLAIM_SECONDS * 1000), *orders.arguments())
        share.granted(orders, reply, self.now)

    def ask(self, number: int, tokens: int) -> bool:
        share = self.shares[number]
        if not share.admit(tokens, self.now):
            with share.waiting(tokens):
                self.call(number)
            if not share.admit(tokens, self.now):
                return False
        self.admitted.append((self.now, tokens))
        return True

    def advance(self, seconds: float) -> None:
        """Let time go by as the limiter's ticks do."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            for number, share in enumerate(self.shares):
                if share.active(self.now) and share.due(self.now):
                    self.call(number)

    def check(self) -> None:
        assert self.limits.concurrent_requests is not None
        assert self.limits.requests_per_minute is not None
        assert self.limits.tokens_per_minute is not None
        assert 0 <= sum(share.in_use for share in self.shares) <= self.limits.concurrent_requests
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
        elif action == "release" and world.shares[number].in_use:
            world.shares[number].release()
        elif action == "advance":
            world.advance(value / 1000)
        world.check()
    # Whatever was before: with nothing running and a minute gone by, any gateway may use the whole limit.
    for share in world.shares:
        while share.in_use:
            share.release()
    world.advance(61)
    assert limits.tokens_per_minute is not None
    assert world.ask(1, min(120, limits.tokens_per_minute))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(0, 50), st.integers(0, 200))
def test_usage_corrects_the_estimate(count: int, estimated: int, used: int) -> None:
    world = World(Limits(None, 6000, None), count)
    assert world.ask(0, estimated)
    world.shares[0].settle(estimated, used, world.now)
    world.shares[0].release()
    for number in range(count):
        world.call(number)
    share = world.shares[0]
    assert share.tokens is not None
    assert share.tokens.remaining(world.now) == 6000 - used


def test_a_gateway_that_died_frees_its_slots() -> None:
    world = World(Limits(None, None, 2), 2)
    assert world.ask(0, 1)
    assert world.ask(0, 1)
    assert not world.ask(1, 1)
    world.shares[0] = Share(world.limits, world.now)  # it calls no more
    world.now += CLAIM_SECONDS - 1
    assert not world.ask(1, 1)
    world.now += 2
    assert world.ask(1, 1)


def test_without_redis_each_gateway_keeps_an_even_share_and_settles_with_it_afterwards() -> None:
    world = World(Limits(60, None, 4), 2)
    for number in (0, 1, 0):
        world.call(number)
    for share in world.shares:
        share.alone(world.now)
    admitted = [sum(share.admit(1, world.now) for _ in range(100)) for share in world.shares]
    assert admitted == [2, 2], "slots"
    for share in world.shares:
        for _ in range(50):
            if share.in_use:
                share.release()
            share.admit(1, world.now)
        assert share.refused(1, world.now) == "requests"
    for number in (0, 1):
        world.call(number)
        assert not world.shares[number].away
    assert world.redis.balances["r"] == -1, "all 60 are charged; one was leased before the second gateway told"
    assert world.ask(0, 1)
    assert not world.ask(1, 1)
    world.shares[0].release()
    world.shares[1].release()
    world.advance(3)
    assert world.ask(1, 1)


def test_changed_limits_apply_at_once() -> None:
    world = World(Limits(60, None, None), 1)
    for _ in range(60):
        assert world.ask(0, 1)
    assert not world.ask(0, 1)
    world.shares[0].resize(Limits(None, 100, None), world.now)
    assert world.ask(0, 100)
    world.shares[0].resize(Limits(), world.now)
    assert world.shares[0].admit(10**6, world.now)


def test_what_redis_said_last_tells_whether_a_limit_is_exhausted() -> None:
    world = World(Limits(requests_per_minute=100, tokens_per_minute=1000, concurrent_requests=3), 2)
    share, other = world.shares
    assert world.ask(0, 10)
    assert not share.exhausted(900, world.now)  # nothing in hand, and there is more
    assert share.exhausted(1000, world.now)
    assert world.ask(1, 10)
    assert world.ask(1, 10)
    assert not other.exhausted(10, world.now)
    assert not world.ask(0, 10)
    assert share.exhausted(10, world.now)  # all slots are claimed
    other.release()
    world.advance(4)
    assert world.ask(0, 10)
    assert not world.ask(0, 10)
