"""Cache salts: prompts of tenants that do not trust each other never meet in a cache, so neither can time the other's.

    scope salt  = base64url(HMAC-SHA256(secret, scope)),              scope: 0x74 0 tenant's name, or 0x67 0 trust group
    with client = base64url(HMAC-SHA256(secret, 0x63 0 scope salt, client's salt))

A salt stands in the request's body and in the keys of the index. It depends on the secret and the names alone, so every
gateway computes the same, and a key may be changed without losing a cache. It must not be logged: with it, a tenant
that reaches an engine by another way could time the cache.
"""

from __future__ import annotations

import base64
import hmac
from pathlib import Path
from typing import Final

from gateway.tenants.tenant import Tenant
from warmroute.config.tenants import TenantsConfig
from warmroute.process.lifecycle import StartupError

SECRET_BYTES: Final = (32, 4096)
_SCOPES: Final = 50_000
"""Scope salts kept; tenants of a file are fewer, those of former files go when it is full."""
_MAKE_ONE: Final = "make one with `openssl rand -hex 32` and give it to all gateways"


class Salts:
    """Computes salts; without a secret, hands on the client's."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._known: dict[str, str] = {}

    @classmethod
    def load(cls, config: TenantsConfig) -> Salts:
        """Raises StartupError where keys are on and there is no secret."""
        if config.keys_file is None or not config.salts:
            return cls(None)
        if config.salt_secret is not None and config.salt_secret_file is not None:
            raise StartupError("tenants.salt_secret_file: tenants.salt_secret is set too; keep one of them")
        if config.salt_secret_file is not None:
            return cls(_check("tenants.salt_secret_file", _read(config.salt_secret_file)))
        if config.salt_secret is not None:
            return cls(_check("tenants.salt_secret", config.salt_secret.encode()))
        raise StartupError(
            "tenants.salt_secret_file: it is missing, and tenants.keys_file is set: without a secret tenants could "
            f"find out each other's prompts by timing the cache; {_MAKE_ONE}, or set tenants.salts to false to share "
            "caches"
        )

    def separates(self, tenant: Tenant) -> bool:
        """Whether this tenant's prompts are kept apart from others'."""
        return self._secret is not None and not tenant.anonymous

    def salt(self, tenant: Tenant, client_salt: str | None) -> str | None:
        """The salt of a request, 43 ASCII characters; None adds none. An empty client's salt is none."""
        if self._secret is None or tenant.anonymous:
            return client_salt or None
        scope = f"g\0{tenant.trust_group}" if tenant.trust_group is not None else f"t\0{tenant.name}"
        salt = self._known.get(scope)
        if salt is None:
            if len(self._known) >= _SCOPES:
                self._known.clear()
            salt = self._known[scope] = _digest(self._secret, scope.encode())
        # Lone surrogates are valid in JSON's escapes, and differ from each other.
        given = client_salt.encode("utf-8", "surrogatepass") if client_salt else None
        return salt if given is None else _digest(self._secret, b"c\0" + salt.encode() + given)


def _digest(secret: bytes, message: bytes) -> str:
    return base64.urlsafe_b64encode(hmac.digest(secret, message, "sha256")).rstrip(b"=").decode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise StartupError(
            f"tenants.salt_secret_file: {str(path)!r} cannot be read: {error.strerror}; {_MAKE_ONE}"
        ) from error


def _check(field: str, secret: bytes) -> bytes:
    least, most = SECRET_BYTES
    if not least <= len(secret) <= most:
        raise StartupError(f"{field}: the secret (not shown) must have {least} to {most} bytes; {_MAKE_ONE}")
    return secret
