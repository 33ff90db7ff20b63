"""The values of this package: a tenant, its limits, and the errors of requests that it may not make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gateway.http.errors import RequestError

Header = tuple[bytes, bytes]
"""A lower-case name and a value, as in `gateway.http.message`."""

ANONYMOUS_NAME: Final = "anonymous"
OTHER_LABEL: Final = "other"
"""The metric label of tenants past the bound on labels."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What all requests of a tenant may use, over all replicas; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    @property
    def any(self) -> bool:
        return self != _UNLIMITED


_UNLIMITED: Final = Limits()


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who sent a request. Holds no key."""

    name: str
    label: str
    """The name in metrics; bounded in number."""
    limits: Limits = _UNLIMITED
    trust_group: str | None = None
    """Tenants of one group share a cache salt."""
    models: frozenset[str] | None = None
    """Public names; None allows all."""
    model_prefixes: tuple[str, ...] = ()
    """Beginnings of further names."""
    limited: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limited", self.limits.any)

    @property
    def anonymous(self) -> bool:
        return self.name == ANONYMOUS_NAME

    def may_use(self, model: str) -> bool:
        """Whether requests may name this model."""
        allowed = self.models
        if allowed is None or model in allowed:
            return True
        return bool(self.model_prefixes) and model.startswith(self.model_prefixes)

    def visible(self, models: Iterable[str]) -> list[str]:
        """Those of the models that the tenant may use, in their order."""
        return [model for model in models if self.may_use(model)]


ANONYMOUS: Final = Tenant(ANONYMOUS_NAME, ANONYMOUS_NAME)
"""Everybody, where no keys are configured."""


_CHALLENGE: Final = ((b"www-authenticate", b"Bearer"),)


def missing_key() -> RequestError:
    """401 for a request without an API key."""
    message = "no API key was sent: give one in the header 'Authorization: Bearer KEY'"
    return RequestError(401, message, "invalid_api_key", headers=_CHALLENGE)


def unknown_key() -> RequestError:
    """401 for an API key that is nobody's."""
    message = "the API key is not known here: check it, or ask the operator of this gateway for one"
    return RequestError(401, message, "invalid_api_key", headers=_CHALLENGE)


def unsalted_refusal(path: str) -> RequestError:
    """403 for a path on which the engine would let tenants time each other's prompts."""
    message = (
        f"{path} is switched off: tenants' caches are kept apart here, and this model's engine cannot do that on this "
        "path; use /v1/chat/completions, or ask the operator of this gateway to set tenants.allow_unsalted"
    )
    return RequestError(403, message, "cache_not_isolated")


def model_refusal(model: str) -> RequestError:
    """404, the same for a model that does not exist and one that is not allowed, so that names are not told."""
    message = f"the model {model[:200]!r} does not exist or this API key may not use it; GET /v1/models lists yours"
    return RequestError(404, message, "model_not_found", "model")
