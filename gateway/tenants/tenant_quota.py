"""One gateway's part of one tenant's limits: leased buckets of requests and tokens, slots for concurrent requests.

Pure: no I/O, the clock is an argument. `limiter.py` carries the orders to Redis. Bounds: one object a tenant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from gateway.tenants.leased_bucket import NO_REFILL, LeasedBucket, RefillRequest
from gateway.tenants.tenant import Limits

RENEW_SECONDS: Final = 3.0
"""How often the claim on slots is renewed, by every gateway that served the tenant in the last minute."""
CLAIM_SECONDS: Final = 10.0
"""When the slots of a gateway that died are free again."""
ACTIVE_SECONDS: Final = 60.0
SLOT_REFUSAL_SECONDS: Final = 0.1

Kind = Literal["concurrency", "requests", "tokens"]


@dataclass(frozen=True, slots=True)
class RefillRequests:
    """One call for a tenant."""

    requests: RefillRequest
    tokens: RefillRequest
    slots: int
    in_use: int
    slots_wanted: int

    def arguments(self) -> list[int]:
        """In the order of `limits.lua`, after the gateway and its time to live."""
        pairs = [(each.limit, each.spent, each.least, each.wanted) for each in (self.requests, self.tokens)]
        return [*pairs[0], *pairs[1], self.slots, self.in_use, self.slots_wanted]


class TenantQuota:
    """Admits requests from what is in hand. Every admitted request is released exactly once, by its `Admission`."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.requests: LeasedBucket | None = None
        self.tokens: LeasedBucket | None = None
        self.in_use = 0
        self.away = False
        """Redis did not answer in time: limits are kept by this gateway alone until it does."""
        self.gateways = 1
        """Gateways that serve this tenant, as of the last answer."""
        self._claim = 0
        self._claim_is_all = False
        self._slots_refused_until = now
        self._admitted = 0
        self._used_at = now
        self._called_at = now
        self._waiting: list[int] = []
        self.resize(limits, now)

    def resize(self, limits: Limits, now: float) -> None:
        """The tenant's limits have changed."""
        self.limits = limits
        self.requests = self._resized(self.requests, limits.requests_per_minute, now)
        self.tokens = self._resized(self.tokens, limits.tokens_per_minute, now)

    def _resized(self, bucket: LeasedBucket | None, limit: int | None, now: float) -> LeasedBucket | None:
        if limit is None:
            return None
        if bucket is None:
            bucket = LeasedBucket(limit, now)
            if self.away:
                bucket.alone(self.gateways, now)
        elif bucket.limit != limit:
            bucket.resize(limit)
        return bucket

    # --- requests ----------------------------------------------------------------------------------------------------

    def admit(self, tokens: int, now: float) -> bool:
        """Take a request of so many tokens, if all that it needs is in hand."""
        requests, bucket = self.requests, self.tokens
        if (
            (self.limits.concurrent_requests is not None and self.in_use >= self._slots())
            or (requests is not None and not requests.has(1, now))
            or (bucket is not None and not bucket.has(tokens, now))
        ):
            return False
        if requests is not None:
            requests.use(1, now)
        if bucket is not None:
            bucket.use(tokens, now)
        self.in_use += 1
        self._admitted += 1
        self._used_at = now
        return True

    def settle(self, estimated: int, used: int, now: float) -> None:
        """The request has used other than what was estimated."""
        if self.tokens is not None:
            self.tokens.use(used - estimated, now)

    def release(self) -> None:
        self.in_use -= 1

    def _slots(self) -> int:
        limit = self.limits.concurrent_requests or 0
        return max(1, limit // self.gateways) if self.away else self._claim

    @property
    def queued(self) -> bool:
        """Whether requests wait for an order."""
        return bool(self._waiting)

    @contextmanager
    def waiting(self, tokens: int) -> Iterator[None]:
        """A request that waits for an order; the next one asks for it too."""
        self._waiting.append(tokens)
        try:
            yield
        finally:
            self._waiting.remove(tokens)

    def refused(self, tokens: int, now: float) -> Kind | None:
        """The limit that stands against such a request, as Redis has just said."""
        full = self.limits.concurrent_requests is not None and self.in_use >= self._slots()
        if full and (self.away or now < self._slots_refused_until):
            return "concurrency"
        if self.requests is not None and self.requests.refused(1, now):
            return "requests"
        if self.tokens is not None and self.tokens.refused(tokens, now):
            return "tokens"
        return None

    def exhausted(self, tokens: int, now: float) -> bool:
        """Whether the limits stand against such a request, by what Redis said last: nobody has what it lacks."""
        return (
            (self.limits.concurrent_requests is not None and self._claim_is_all and self.in_use >= self._claim)
            or (self.requests is not None and self.requests.remaining(now) < 1)
            or (self.tokens is not None and self.tokens.remaining(now) < tokens)
        )

    def short(self, now: float) -> Kind:
        """What a request that was not admitted lacks here."""
        if self.limits.concurrent_requests is not None and self.in_use >= self._slots():
            return "concurrency"
        return "requests" if self.requests is not None and not self.requests.has(1, now) else "tokens"

    # --- orders ------------------------------------------------------------------------------------------------------

    def active(self, now: float) -> bool:
        """Whether it is to be kept."""
        return self.in_use > 0 or bool(self._waiting) or now - self._used_at < ACTIVE_SECONDS

    def due(self, now: float) -> bool:
        """Whether to call without anybody waiting."""
        if self.away or now - self._called_at >= RENEW_SECONDS:
            return True
        if self.requests is not None and self.requests.due(now):
            return True
        if self.tokens is not None and self.tokens.due(now):
            return True
        # Slots that others may want.
        return self._claim > self.in_use + self._spare()

    def _spare(self) -> int:
        limit = self.limits.concurrent_requests or 0
        return min(self._admitted, limit // 16)

    def refill_request(self, now: float, *, leaving: bool = False) -> RefillRequests:
        """What to ask for; the answer comes to `granted` or `failed` before the next order. Nothing when leaving."""
        count = len(self._waiting)
        requests = tokens = NO_REFILL
        if self.requests is not None:
            requests = self.requests.refill_request(1 if count else 0, count, now, leaving=leaving)
        if self.tokens is not None:
            tokens = self.tokens.refill_request(min(self._waiting, default=0), sum(self._waiting), now, leaving=leaving)
        wanted = self.in_use + count + self._spare()
        self._admitted = 0
        self._called_at = now
        return RefillRequests(requests, tokens, self.limits.concurrent_requests or 0, self.in_use, wanted)

    def granted(self, refills: RefillRequests, reply: Sequence[int], now: float) -> None:
        """Redis answered, as `limits.lua` says."""
        requests, requests_left, tokens, tokens_left, claim, _, gateways = reply
        self.away, self.gateways = False, gateways
        if self.requests is not None and refills.requests is not NO_REFILL:
            self.requests.granted(refills.requests, requests, requests_left, now)
        if self.tokens is not None and refills.tokens is not NO_REFILL:
            self.tokens.granted(refills.tokens, tokens, tokens_left, now)
        self._claim = claim
        self._claim_is_all = claim < refills.slots_wanted
        if self._claim_is_all and self.in_use >= claim:
            self._slots_refused_until = now + SLOT_REFUSAL_SECONDS

    def failed(self, refills: RefillRequests, now: float) -> None:
        """Redis did not answer."""
        if self.requests is not None and refills.requests is not NO_REFILL:
            self.requests.failed(refills.requests)
        if self.tokens is not None and refills.tokens is not NO_REFILL:
            self.tokens.failed(refills.tokens)
        self.alone(now)

    def alone(self, now: float) -> None:
        """Go on without Redis."""
        self.away = True
        for bucket in (self.requests, self.tokens):
            if bucket is not None:
                bucket.alone(self.gateways, now)
