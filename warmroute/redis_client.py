"""How every part connects to Redis: one place for deadlines and retries."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from warmroute.config import RedisConfig


def connect(config: RedisConfig) -> Redis:
    """A client with a deadline on every call. One immediate retry covers pooled connections that a restart of the
    server left stale; longer outages are their callers' to wait out."""
    return Redis.from_url(
        config.url,
        socket_timeout=config.timeout_seconds,
        socket_connect_timeout=config.timeout_seconds,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 1),
        protocol=2,
    )
