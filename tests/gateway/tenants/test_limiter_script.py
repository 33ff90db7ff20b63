"""The script in a real server against its naive twin, with the server's clock in our hands."""

from __future__ import annotations

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.tenants.limiter import SCRIPT, limits_key
from tests.gateway.tenants.support import NaiveLimits

CLOCKED = SCRIPT.replace("redis.call('TIME')", "{ARGV[14], ARGV[15]}")
small = st.integers(0, 50)
kind = st.tuples(st.sampled_from([0, 10, 60]), st.integers(-30, 700), small, small)
calls = st.lists(
    st.tuples(
        st.integers(-5_000, 20_000),
        st.sampled_from("abc"),
        st.sampled_from([0, 10_000]),
        kind,
        kind,
        small,
        small,
        small,
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(calls)
def test_the_script_is_its_naive_twin(redis_url: str, calls: list) -> None:
    assert CLOCKED != SCRIPT
    naive = NaiveLimits()
    now = 1_700_000_000_000
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        for wait, gateway, life, requests, tokens, slots, in_use, wanted in calls:
            now += wait
            arguments = (*requests, *tokens, slots, in_use, wanted)
            clock = (now // 1000, now % 1000 * 1000)
            reply = client.eval(CLOCKED, 1, limits_key("t"), gateway, life, *arguments, *clock)
            assert reply == naive.call(now, gateway, life, *arguments)
        assert 0 < client.pttl(limits_key("t")) <= 720_000
        assert client.hlen(limits_key("t")) <= 3 + 3


def test_a_server_whose_clock_is_behind_takes_nothing_and_one_ahead_gives_one_minute_at_most(redis_url: str) -> None:
    now = 1_700_000_000
    with redis.Redis.from_url(redis_url) as client:

        def left(at: int, spent: int = 0) -> int:
            return client.eval(CLOCKED, 1, limits_key("t"), "a", 10_000, 60, spent, 0, 0, 0, 0, 0, 0, 0, 0, 0, at, 0)[1]

        assert left(now, 40) == 20
        assert left(now - 3600) == 20
        assert left(now - 3590) == 30
        assert left(now + 10**6) == 60
