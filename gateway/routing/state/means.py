"""A running mean over the latest values. No I/O and no clock."""

from __future__ import annotations

from typing import Final

LATEST: Final = 64


class RunningMean:
    """Over about the LATEST values; 0 before the first."""

    __slots__ = ("_count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._count = 0

    def observe(self, value: float) -> None:
        """Take a further value."""
        if self._count < LATEST:
            self._count += 1
        self.value += (value - self.value) / self._count
