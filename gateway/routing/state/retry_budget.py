"""How many retries a pool may make: a share of its requests, so that a pool in trouble is not asked several times as
much as before. No I/O, no clock."""

from __future__ import annotations

from typing import Final

BURST: Final = 100.0
"""Retries saved up at most: what a worker that dies leaves behind, and no more, may be tried again at once."""


class RetryBudget:
    """A token bucket: every request adds `ratio` of a retry and every second `floor_per_second`; a retry takes one."""

    def __init__(self, ratio: float, floor_per_second: float, *, burst: float = BURST) -> None:
        """`ratio` 0 and floor 0 forbid retries."""
        self._ratio = ratio
        self._floor = floor_per_second
        self._burst = burst if ratio or floor_per_second else 0.0
        self._balance = self._burst
        self._at: float | None = None

    @property
    def balance(self) -> float:
        """Retries that could be made now."""
        return self._balance

    def request(self, now: float) -> None:
        """A request begins."""
        self._add(now, self._ratio)

    def take(self, now: float) -> bool:
        """Whether one more retry may be made; it counts as made then."""
        self._add(now, 0.0)
        if self._balance < 1:
            return False
        self._balance -= 1
        return True

    def _add(self, now: float, amount: float) -> None:
        balance = self._balance + amount
        if self._at is not None and now > self._at:
            balance += (now - self._at) * self._floor
        self._at = now
        self._balance = min(self._burst, balance)
