"""Whether a pool's prompts can be trusted to have the engine's token ids: what its replies say decides.

An id that differs makes every key after it wrong, and nothing but a cache that is never hit tells. So each reply's
count of prompt tokens is compared with the gateway's own. While most of the last replies differ, prompts are tokenised
by the engine itself, or, where it has no way to say, routed by load. The gateway's own count goes on being compared
meanwhile, and comes back when replies agree with it again. No I/O; the clock is an argument.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

WINDOW: Final = 32
"""Replies that the verdict is over."""
LEAST: Final = 16
"""Wrong ones among them that end the trust: half, so that one kind of prompt that goes wrong, and is counted, does not
cost all others the engine's time."""
FAILURES: Final = 8
"""Failed questions in a row after which the engine is not asked for a while."""
ASK_AGAIN_SECONDS: Final = 60.0
_WINDOW_BITS: Final = (1 << WINDOW) - 1


class Source(StrEnum):
    """Where a pool's token ids come from."""

    GATEWAY = "gateway"
    ENGINE = "engine"
    NONE = "none"
    """Neither: by load."""


class SelfCheck:
    """One pool and one tokenizer's verdict. Constant in size."""

    def __init__(self) -> None:
        self._wrong = 0
        """The last WINDOW comparisons, newest in the lowest bit; a set bit is a difference."""
        self._compared = 0
        self._trusted = True
        self._failures = 0
        self._ask_at = 0.0
        self.last_difference: tuple[int, int] | None = None
        """Own and the engine's count, where they differed last."""

    def source(self, now: float) -> Source:
        """Where token ids are to come from now."""
        if self._trusted:
            return Source.GATEWAY
        return Source.ENGINE if now >= self._ask_at else Source.NONE

    def compare(self, own: int, reported: int) -> bool:
        """Note a reply's count of prompt tokens; whether the verdict on the gateway's own has changed."""
        differs = own != reported
        if differs:
            self.last_difference = own, reported
        self._wrong = (self._wrong << 1 | differs) & _WINDOW_BITS
        self._compared = min(self._compared + 1, WINDOW)
        all_right = not self._wrong and self._compared == WINDOW
        changed = self._wrong.bit_count() >= LEAST if self._trusted else all_right
        if changed:
            self._trusted = not self._trusted
            self._wrong = self._compared = 0
            self._failures, self._ask_at = 0, 0.0
        return changed

    @property
    def trusted(self) -> bool:
        return self._trusted

    def asked(self) -> None:
        """The engine has told token ids."""
        self._failures = 0

    def ask_failed(self, now: float, *, unserved: bool) -> bool:
        """It has not; `unserved`: it has no such path. Whether it is now left alone for a while."""
        self._failures += 1
        if not unserved and self._failures < FAILURES:
            return False
        self._failures = 0
        self._ask_at = now + ASK_AGAIN_SECONDS
        return True
