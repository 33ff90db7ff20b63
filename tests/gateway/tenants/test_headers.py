from __future__ import annotations

import pytest

from gateway.tenants.headers import duration, limit_refusal, rate_headers, too_large
from gateway.tenants.tenant import Limits
from gateway.tenants.tenant_quota import TenantQuota


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, b"0ms"), (0.0121, b"13ms"), (1, b"1s"), (1.5, b"1.5s"), (59.9994, b"60s"), (60, b"1m0s"), (361.2, b"6m2s")],
)
def test_durations_are_openais(seconds: float, expected: bytes) -> None:
    assert duration(seconds) == expected


def test_each_rate_has_its_headers() -> None:
    quota = TenantQuota(Limits(60, 600, 2), 0.0)
    quota.alone(0.0)
    assert quota.admit(100, 0.0)
    assert dict(rate_headers(quota, 0.0)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"500",
        b"x-ratelimit-reset-tokens": b"10s",
    }
    assert rate_headers(TenantQuota(Limits(None, None, 2), 0.0), 0.0) == ()


def test_a_refusal_says_which_limit_and_when_to_come_again() -> None:
    quota = TenantQuota(Limits(60, 600, 2), 0.0)
    quota.alone(0.0)
    assert quota.admit(600, 0.0)
    tokens = limit_refusal("tokens", quota, 100, 0.0)
    assert (tokens.status, tokens.code) == (429, "rate_limit_exceeded")
    assert tokens.message == (
        "this request of about 100 tokens is past the limit of 600 tokens a minute; try again in 10 s"
    )
    assert dict(tokens.headers)[b"retry-after"] == b"10"
    assert dict(limit_refusal("concurrency", quota, 1, 0.0).headers)[b"retry-after"] == b"1"
    assert dict(limit_refusal("requests", quota, 1, 0.0).headers)[b"retry-after"] == b"1"
    large = too_large(quota, 601, 0.0)
    assert dict(large.headers)[b"x-should-retry"] == b"false"
    assert b"retry-after" not in dict(large.headers)
