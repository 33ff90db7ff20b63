"""Keys and files for the tests, and the naive twin of `limits.lua`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import sha256

KEY = b"wr-test-" + b"k" * 32


def digest(key: bytes) -> str:
    return sha256(key).hexdigest()


@dataclass
class NaiveLimits:
    """One tenant's balances and claims; says what the script says."""

    balances: dict[str, float] = field(default_factory=dict)
    at: int | None = None
    claims: dict[str, tuple[int, int]] = field(default_factory=dict)

    def call(self, now_ms: int, gateway: str, life_ms: int, *arguments: int) -> list[int]:
        elapsed = max(0, now_ms - (now_ms if self.at is None else self.at))
        self.claims = {name: claim for name, claim in self.claims.items() if name == gateway or claim[1] >= now_ms}
        others = sum(claim for name, (claim, _) in self.claims.items() if name != gateway)
        gateways = 1 + sum(name != gateway for name in self.claims)
        reply = [*self._bucket("r", elapsed, *arguments[0:4]), *self._bucket("t", elapsed, *arguments[4:8])]
        slots, in_use, wanted = arguments[8:11]
        claimed = max(in_use, min(wanted, slots - others)) if slots else 0
        self.claims.pop(gateway, None)
        if life_ms:
            self.claims[gateway] = (claimed, now_ms + life_ms)
        self.at = now_ms
        return [*reply, claimed, others, gateways]

    def _bucket(self, name: str, elapsed: int, limit: int, spent: int, least: int, wanted: int) -> tuple[int, int]:
        if not limit:
            return 0, 0
        balance = min(limit, self.balances.get(name, limit) + limit * elapsed / 60000)
        balance = max(-10 * limit, min(limit, balance - spent))
        granted = max(0, min(wanted, math.floor(balance))) if balance >= least else 0
        self.balances[name] = balance - granted
        return granted, math.floor(balance - granted)
