"""Who may use the public port, in one value: tenants, their limits and their salts."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from gateway.engines.registry import steering_fields
from gateway.http.message import Request
from gateway.tenants.limiter import Admission, Limiter
from gateway.tenants.salts import Salts
from gateway.tenants.tenant import ANONYMOUS, Tenant
from gateway.tenants.tenants import Tenants

UNLIMITED: Final = Admission(None, 0, time.monotonic)
"""Holds nothing, so that all requests share it."""


@dataclass(frozen=True, slots=True)
class Access:
    """`OPEN` where no keys are configured."""

    salts: Salts
    tenants: Tenants | None = None
    limiter: Limiter | None = None
    allow_unsalted: bool = False
    """Serve tenants also where an engine cannot keep their caches apart."""
    allowed_fields: frozenset[str] | None = frozenset()
    """Fields that steer an engine and are let through from tenants; None: all."""

    def identify(self, request: Request, *, anthropic: bool) -> Tenant:
        """Who sent this; Anthropic's clients give the key in x-api-key. Raises RequestError."""
        if self.tenants is None:
            return ANONYMOUS
        key = request.header(b"x-api-key") if anthropic else None
        return self.tenants.identify(request.header(b"authorization"), key)

    def needs_salt(self, tenant: Tenant) -> bool:
        """Whether a path on which the engine ignores salts is closed to this tenant."""
        return not self.allow_unsalted and self.salts.separates(tenant)

    def stripped_fields(self, tenant: Tenant, engines: frozenset[str]) -> frozenset[str]:
        """The fields that are taken out of this tenant's bodies for a pool of these engines."""
        if tenant.anonymous or self.allowed_fields is None:
            return frozenset()
        return steering_fields(engines, self.allowed_fields)

    async def admit(self, tenant: Tenant, tokens: int) -> Admission:
        """Leave for one request of about so many prompt tokens. Raises RequestError."""
        if self.limiter is None:
            return UNLIMITED
        return await self.limiter.admit(tenant, tokens, time.monotonic())

    def foresee(self, tenant: Tenant, tokens: int) -> None:
        """Raises RequestError where `admit` would in any case, as far as is known without asking anybody."""
        if self.limiter is not None:
            self.limiter.foresee(tenant, tokens, time.monotonic())

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What keeps it up to date."""
        tasks: list[Coroutine[Any, Any, None]] = []
        if self.tenants is not None:
            tasks.append(self.tenants.run())
        if self.limiter is not None:
            tasks.append(self.limiter.run())
        return tasks


OPEN: Final = Access(Salts(None))
