"""Which files of a pool are not to be tried again: remembered here and in Redis, for restarts and other gateways.

`wr-model:{pool}` holds a JSON object of the newest `MOST` refusals, by digest, each with why and until when. A gateway
whose Redis user may not read or write it remembers for itself alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import orjson
from redis.exceptions import RedisError

from warmroute.redis.client import Client

logger = logging.getLogger(__name__)

MOST: Final = 32
KEPT_SECONDS: Final = 86_400.0
REASON_CHARACTERS: Final = 300
RULES: Final = "1"
"""Changes with what is refused: another release's refusals do not count."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """`until`: seconds since 1970."""

    reason: str
    until: float


class Refusals:
    """One pool's. At most `MOST`; the oldest are forgotten first."""

    def __init__(self, redis: Client, pool: str) -> None:
        self._redis: Any = redis
        self._pool = pool
        self._key = f"wr-model:{{{quote(pool, safe='')}}}"
        self._refused: dict[str, Refusal] = {}
        self._complained = False

    def reason(self, digest: str, now: float) -> str | None:
        """Why files of this digest are refused; None where they are not."""
        refusal = self._refused.get(digest)
        return refusal.reason if refusal is not None and refusal.until > now else None

    async def load(self, now: float) -> None:
        """Take in what other gateways, and this one before its restart, have refused."""
        try:
            self._merge(_parsed(await self._redis.get(self._key)), now)
        except (RedisError, OSError) as error:
            self._complain(error)

    async def add(self, digest: str, reason: str, now: float) -> None:
        """Refuse files from now on. Who writes at the same moment may win: then they are tried once more there."""
        self._refused[digest] = Refusal(reason[:REASON_CHARACTERS], now + KEPT_SECONDS)
        try:
            self._merge(_parsed(await self._redis.get(self._key)), now)
            written = {digest: [refusal.reason, refusal.until] for digest, refusal in self._refused.items()}
            value = orjson.dumps({"rules": RULES, "refused": written})
            await self._redis.set(self._key, value, px=int(KEPT_SECONDS * 1000))
        except (RedisError, OSError) as error:
            self._complain(error)

    def _merge(self, others: Mapping[str, Refusal], now: float) -> None:
        both = {**others, **self._refused}
        current = sorted(
            ((digest, each) for digest, each in both.items() if now < each.until <= now + KEPT_SECONDS),
            key=lambda item: item[1].until,
        )
        self._refused = dict(current[-MOST:])

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("pool %s: refused model files are remembered by this process alone: %s", self._pool, error)


def _parsed(value: bytes | None) -> dict[str, Refusal]:
    """What lies in Redis may be anything: of what is malformed nothing is taken."""
    try:
        fields = orjson.loads(value or b"{}")
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(fields, dict) or fields.get("rules") != RULES or not isinstance(fields.get("refused"), dict):
        return {}
    refusals: dict[str, Refusal] = {}
    for digest, entry in list(fields["refused"].items())[:MOST]:
        match entry:
            case [str(reason), int() | float() as until]:
                refusals[digest] = Refusal(reason[:REASON_CHARACTERS], float(until))
    return refusals
