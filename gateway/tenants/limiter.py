"""Tenants' limits over all gateways: shares are taken from Redis ahead of use, so most requests wait for nobody.

A leased bucket holds at most one second's worth of a rate, and twice what was used since the last call. A gateway
gives back unused units within about a second. So no more than the limits is ever admitted; the price is that a tenant
near its limit may be refused by one gateway while others hold up to a second's worth each. Slots are claimed by
gateway, renewed every 3 s, and are free 10 s after a gateway died.

While Redis does not answer within `limit_wait_seconds`, each gateway keeps an even share of the limits (by how many
served the tenant when Redis last answered; a gateway that never reached it takes itself for the only one), and calls on
in the background. An outage lets through at most one more minute's worth for each gateway.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from importlib.resources import files
from types import TracebackType
from typing import Any, Final

from prometheus_client import Counter
from redis.exceptions import RedisError

from gateway.tenants.headers import limit_refusal, rate_headers, too_large
from gateway.tenants.metrics import TenantMetrics
from gateway.tenants.tenant import Header, Tenant
from gateway.tenants.tenant_quota import CLAIM_SECONDS, TenantQuota
from warmroute.redis.client import Client

logger = logging.getLogger(__name__)

SCRIPT: Final = files("gateway.tenants").joinpath("limits.lua").read_text(encoding="utf-8")
TICK_SECONDS: Final = 0.25
AWAY_CALL_SECONDS: Final = 1.0
LEAVE_SECONDS: Final = 1.0


def limits_key(tenant: str) -> str:
    """The Redis key of a tenant's balances and claims; its hash tag is the tenant."""
    return f"wr-tenant:{{{tenant}}}:limits"


class Admission:
    """Leave for one request. A context manager; it is released once, however often it is told."""

    __slots__ = ("_clock", "_estimated", "_held", "_quota", "_settled", "_tokens")

    def __init__(self, held: _Held | None, estimated: int, clock: Callable[[], float]) -> None:
        self._held = held
        self._quota = held.quota if held is not None else None
        self._tokens = held.tokens if held is not None else None
        self._estimated = estimated
        self._settled = False
        self._clock = clock

    def settle(self, tokens: int) -> None:
        """The tokens that the request used, prompt and completion; the first call counts."""
        if self._quota is None or self._settled:
            return
        self._settled = True
        tokens = max(0, tokens)
        self._quota.settle(self._estimated, tokens, self._clock())
        if self._tokens is not None:
            self._tokens.inc(tokens)

    def settle_estimate(self, reply_tokens: int) -> None:
        """As `settle`, where the reply did not tell: the estimated prompt, and about so many tokens of the reply."""
        self.settle(self._estimated + reply_tokens)

    def release(self) -> None:
        """The request has ended."""
        held, self._held = self._held, None
        if held is not None:
            held.quota.release()

    def headers(self) -> tuple[Header, ...]:
        """x-ratelimit-* as of now."""
        return () if self._quota is None else rate_headers(self._quota, self._clock())

    def __enter__(self) -> Admission:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class _Held:
    """A tenant's quota with its call in flight and its counters."""

    __slots__ = ("admitted", "answered", "begun", "call", "label", "lost_at", "name", "quota", "tokens")

    def __init__(self, tenant: Tenant, metrics: TenantMetrics, now: float) -> None:
        self.name = tenant.name
        self.label = tenant.label
        self.quota = TenantQuota(tenant.limits, now)
        self.call: asyncio.Task[None] | None = None
        self.begun = 0
        self.answered = 0
        """The latest call that was answered: one begun before a request came does not know of it."""
        self.lost_at = now
        self.admitted: Counter = metrics.tenant_requests.labels(tenant.label, "admitted")
        self.tokens: Counter = metrics.tenant_tokens.labels(tenant.label)


class Limiter:
    """One a gateway process. `run` renews, gives back and recovers; without it units are only taken."""

    def __init__(
        self,
        redis: Client,
        metrics: TenantMetrics,
        *,
        wait_seconds: float = 0.02,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`redis`: best a client of its own, so that calls that hang take no connection from the index's reader."""
        self._redis = redis
        self._script = redis.register_script(SCRIPT)
        self._metrics = metrics
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._gateway = secrets.token_hex(8)
        self._held: dict[str, _Held] = {}
        self._unlimited = Admission(None, 0, clock)
        metrics.limits_shared.set(1)

    async def admit(self, tenant: Tenant, tokens: int, now: float) -> Admission:
        """Leave for a request of about so many prompt tokens. Waits at most `wait_seconds`, and mostly not at all.
        Raises RequestError where the tenant is past a limit.

        `now` is the clock's time.
        """
        if not tenant.limited:
            return self._unlimited
        held = self._held.get(tenant.name)
        if held is None or held.quota.limits is not tenant.limits:
            held = self._hold(tenant, now)
        # What comes for those who wait is theirs: passed by newcomers, they would be refused below the limits.
        if not held.quota.queued and held.quota.admit(tokens, now):
            held.admitted.inc()
            return Admission(held, tokens, self._clock)
        return await self._ask(held, tokens)

    def foresee(self, tenant: Tenant, tokens: int, now: float) -> None:
        """Raises RequestError for a request of more tokens than its tenant may use in a minute. Takes nothing."""
        limit = tenant.limits.tokens_per_minute
        if limit is not None and tokens > limit:
            held = self._held.get(tenant.name)
            if held is None or held.quota.limits is not tenant.limits:
                held = self._hold(tenant, now)
            self._metrics.tenant_requests.labels(held.label, "tokens").inc()
            raise too_large(held.quota, tokens, now)

    def _hold(self, tenant: Tenant, now: float) -> _Held:
        held = self._held.get(tenant.name)
        if held is None:
            held = self._held[tenant.name] = _Held(tenant, self._metrics, now)
        else:
            held.quota.resize(tenant.limits, now)
        return held

    async def _ask(self, held: _Held, tokens: int) -> Admission:
        quota = held.quota
        now = self._clock()
        limit = quota.limits.tokens_per_minute
        if limit is not None and tokens > limit:
            self._metrics.tenant_requests.labels(held.label, "tokens").inc()
            raise too_large(quota, tokens, now)
        deadline = now + self._wait_seconds
        begun = held.begun
        with quota.waiting(tokens):
            while not quota.away and quota.refused(tokens, now) is None and now < deadline:
                await asyncio.wait({self._call(held)}, timeout=deadline - now)
                now = self._clock()
                if quota.admit(tokens, now):
                    held.admitted.inc()
                    return Admission(held, tokens, self._clock)
        unanswered = now >= deadline and quota.refused(tokens, now) is None
        if not quota.away and unanswered and (held.answered <= begun or not quota.exhausted(tokens, now)):
            # No answer, or one of which others have used all that was granted: there is more.
            self._metrics.limit_calls.labels("late").inc()
            self._lose(held, now)
        if quota.admit(tokens, now):
            held.admitted.inc()
            return Admission(held, tokens, self._clock)
        kind = quota.refused(tokens, now) or quota.short(now)
        self._metrics.tenant_requests.labels(held.label, kind).inc()
        raise limit_refusal(kind, quota, tokens, now)

    def _lose(self, held: _Held, now: float) -> None:
        held.lost_at = now
        held.quota.alone(now)
        self._metrics.limits_shared.set(0)

    # --- Redis -------------------------------------------------------------------------------------------------------

    def _call(self, held: _Held) -> asyncio.Task[None]:
        """The tenant's call in flight, or a new one: there is one at a time, and nobody's leaving ends it."""
        if held.call is None or held.call.done():
            held.call = asyncio.get_running_loop().create_task(self._exchange(held))
        return held.call

    async def _exchange(self, held: _Held, *, leave: bool = False) -> None:
        quota = held.quota
        held.begun += 1
        number = held.begun
        refills = quota.refill_request(self._clock(), leaving=leave)
        life = 0 if leave else int(CLAIM_SECONDS * 1000)
        try:
            reply: list[int] = await self._script([limits_key(held.name)], [self._gateway, life, *refills.arguments()])
        except RedisError as error:
            if not quota.away:
                logger.warning("limits of tenants are kept by this gateway alone: Redis: %s", error)
            quota.failed(refills, self._clock())
            self._lose(held, self._clock())
            self._metrics.limit_calls.labels("failed").inc()
        else:
            quota.granted(refills, reply, self._clock())
            self._metrics.limit_calls.labels("answered").inc()
            held.answered = number

    async def run(self) -> None:
        """Call for every tenant that is due, until cancelled; then give everything back, within a second."""
        try:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                self._tick(self._clock())
        except BaseException as error:  # noqa: BLE001 - raised again below: see setup.py on awaiting within a handler
            end = error
        await self._leave()
        raise end

    def _tick(self, now: float) -> None:
        away = False
        for held in list(self._held.values()):
            quota = held.quota
            away = away or quota.away
            if held.call is not None:
                if not held.call.done():
                    continue
                held.call.result()  # an error that is not Redis's ends `run`, which somebody watches
            if not quota.active(now):
                # Its claim in Redis ends by itself, and its units went back when it was idle.
                del self._held[held.name]
            elif (now - held.lost_at >= AWAY_CALL_SECONDS) if quota.away else quota.due(now):
                self._call(held)
        self._metrics.limits_shared.set(0 if away else 1)

    async def _leave(self) -> None:
        """Give back units and slots; what is not given back in time costs others at most 10 s."""
        calls: list[asyncio.Task[Any]] = [held.call for held in self._held.values() if held.call is not None]
        loop = asyncio.get_running_loop()
        calls += [
            loop.create_task(self._exchange(held, leave=True))
            for held in self._held.values()
            if held.call is None or held.call.done()
        ]
        if not calls:
            return
        _, late = await asyncio.wait(calls, timeout=LEAVE_SECONDS)
        for call in late:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
