"""How many sequences a worker runs at a time, learned from its reports: where it stands while requests wait.

An engine at its limit runs as many sequences at every report as long as something waits. Where requests wait for their
prefill it runs another number each time, and its highest says nothing. No I/O and no clock.
"""

from __future__ import annotations

from typing import Final

ENOUGH: Final = 5.0
"""Reports with requests waiting before anything is concluded: half a second."""
LATEST: Final = 100.0
"""Such reports that count; older ones fade."""
PLATEAU: Final = 0.6
"""Share of them in which a worker at its limit runs the most that it ever runs."""


class SlotEstimate:
    """Of one worker."""

    __slots__ = ("_at_most", "_most", "_queued", "slots")

    def __init__(self) -> None:
        self.slots = 0
        """0 where they are not known."""
        self._most = 0
        self._at_most = 0.0
        self._queued = 0.0

    def observe(self, running: int, waiting: int) -> int:
        """Take a report; returns the slots."""
        if running > self._most:
            self._most, self._at_most = running, 0.0
        if waiting and running:
            keep = 1 - 1 / LATEST
            self._queued = self._queued * keep + 1
            self._at_most = self._at_most * keep + (running == self._most)
            if self._queued > LATEST / 2 and self._at_most < 1:  # its limit is lower than it was
                self._most, self._at_most, self._queued = running, 1.0, 1.0
        known = self._queued >= ENOUGH and self._at_most >= PLATEAU * self._queued
        self.slots = self._most if known else 0
        return self.slots
