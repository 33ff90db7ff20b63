"""Refusals of limits, and the rate-limit headers as OpenAI's API has them."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gateway.http.errors import RequestError
from gateway.tenants.leased_bucket import LeasedBucket
from gateway.tenants.tenant import Header
from gateway.tenants.tenant_quota import Kind, TenantQuota

SLOT_RETRY_SECONDS = 1
"""Nobody knows when a running request ends."""


class _Names(NamedTuple):
    limit: bytes
    remaining: bytes
    reset: bytes


_REQUESTS: Final = _Names(
    b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"
)
_TOKENS: Final = _Names(b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens")


def rate_headers(quota: TenantQuota, now: float) -> tuple[Header, ...]:
    """x-ratelimit-limit-, -remaining- and -reset- for each rate that the tenant has."""
    headers: tuple[Header, ...] = ()
    if quota.requests is not None:
        headers = _headers(_REQUESTS, quota.requests, now)
    if quota.tokens is not None:
        headers += _headers(_TOKENS, quota.tokens, now)
    return headers


def _headers(names: _Names, bucket: LeasedBucket, now: float) -> tuple[Header, ...]:
    remaining, reset = bucket.outlook(now)
    return (
        (names.limit, b"%d" % bucket.limit),
        (names.remaining, b"%d" % remaining),
        (names.reset, duration(reset) if reset else b"0ms"),
    )


def duration(seconds: float) -> bytes:
    """Such as 12ms, 1.5s or 6m0s."""
    if seconds < 1:
        return b"%dms" % math.ceil(seconds * 1000)
    if seconds < 60:
        return b"%gs" % (math.ceil(seconds * 1000) / 1000)
    minutes, rest = divmod(math.ceil(seconds), 60)
    return b"%dm%ds" % (minutes, rest)


def limit_refusal(kind: Kind, quota: TenantQuota, tokens: int, now: float) -> RequestError:
    """429 with Retry-After, in whole seconds, never 0."""
    limits = quota.limits
    if kind == "concurrency":
        seconds = float(SLOT_RETRY_SECONDS)
        message = f"{limits.concurrent_requests} requests of this API key's tenant run already, which is its limit"
    elif kind == "requests":
        seconds = quota.requests.seconds_until(1, now) if quota.requests is not None else 0.0
        message = f"the limit of {limits.requests_per_minute} requests a minute is used up"
    else:
        seconds = quota.tokens.seconds_until(tokens, now) if quota.tokens is not None else 0.0
        message = (
            f"this request of about {tokens} tokens is past the limit of {limits.tokens_per_minute} tokens a minute"
        )
    wait = max(1, math.ceil(seconds))
    headers = ((b"retry-after", b"%d" % wait), *rate_headers(quota, now))
    return RequestError(429, f"{message}; try again in {wait} s", "rate_limit_exceeded", headers=headers)


def too_large(quota: TenantQuota, tokens: int, now: float) -> RequestError:
    """429 for a request that no waiting will let through; clients are told not to try again."""
    message = (
        f"this request has about {tokens} tokens, more than the limit of {quota.limits.tokens_per_minute} a minute; "
        "send a shorter prompt"
    )
    headers = ((b"x-should-retry", b"false"), *rate_headers(quota, now))
    return RequestError(429, message, "rate_limit_exceeded", headers=headers)
