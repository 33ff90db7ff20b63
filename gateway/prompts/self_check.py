"""Checks by a pool's replies whether the gateway's token ids are the engine's.

One wrong id makes every key after it wrong, and the only sign is a cache that is never hit. So each reply's count of
prompt tokens is compared with the gateway's own. While at least LEAST of the last WINDOW differ, the engine is asked
for token ids, or, where it has no path for that, requests are routed by load. The counts are still compared then; the
gateway's ids are used again when the replies agree. No I/O; the clock is an argument, in seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

WINDOW: Final = 32
"""How many of the last replies decide."""
LEAST: Final = 16
"""Differences among them that end the trust: half, so that one rare kind of prompt with a wrong count does not make
the engine tokenise all others."""
FAILURES: Final = 8
"""Failures in a row after which the engine is not asked for ASK_AGAIN_SECONDS."""
MOST_AGAIN: Final = 8
"""Differences in WINDOW replies at which trust returns. With 0, one rare kind of prompt with a wrong count would
prevent that for ever."""
ASK_AGAIN_SECONDS: Final = 60.0
_WINDOW_BITS: Final = (1 << WINDOW) - 1


class TokenIdSource(StrEnum):
    """Who makes a pool's token ids."""

    GATEWAY = "gateway"
    ENGINE = "engine"
    NONE = "none"
    """Neither: requests are routed by load."""


class SelfCheck:
    """For one pool and one tokenizer. Constant in size."""

    def __init__(self) -> None:
        self._wrong = 0
        """The last WINDOW comparisons, newest in the lowest bit; a set bit is a difference."""
        self._compared = 0
        self._trusted = True
        self._failures = 0
        self._ask_at = 0.0
        self.last_difference: tuple[int, int] | None = None
        """The gateway's and the engine's count in tokens, at the last difference."""

    def source(self, now: float) -> TokenIdSource:
        """Who makes token ids now."""
        if self._trusted:
            return TokenIdSource.GATEWAY
        return TokenIdSource.ENGINE if now >= self._ask_at else TokenIdSource.NONE

    def compare(self, own: int, reported: int) -> bool:
        """Compare a reply's count of prompt tokens with our own. Returns whether `trusted` has changed."""
        differs = own != reported
        if differs:
            self.last_difference = own, reported
        self._wrong = (self._wrong << 1 | differs) & _WINDOW_BITS
        self._compared = min(self._compared + 1, WINDOW)
        wrong = self._wrong.bit_count()
        changed = wrong >= LEAST if self._trusted else wrong <= MOST_AGAIN and self._compared == WINDOW
        if changed:
            self._trusted = not self._trusted
            self._wrong = self._compared = 0
            self._failures, self._ask_at = 0, 0.0
        return changed

    @property
    def trusted(self) -> bool:
        return self._trusted

    def asked(self) -> None:
        """The engine has answered with token ids."""
        self._failures = 0

    def ask_failed(self, now: float, *, unserved: bool) -> bool:
        """The engine gave none; `unserved`: it has no path for them. Returns whether asking now pauses."""
        self._failures += 1
        if not unserved and self._failures < FAILURES:
            return False
        self._failures = 0
        self._ask_at = now + ASK_AGAIN_SECONDS
        return True
