"""At most one log line a second for each cause: a fault that meets a thousand streams at once must not fill a disk."""

from __future__ import annotations

from typing import Final

INTERVAL_SECONDS: Final = 1.0


class LogLimit:
    """Says which lines to leave out. Bounded by the causes, which are words of ours, never a peer's."""

    def __init__(self) -> None:
        self._causes: dict[str, tuple[float, int]] = {}

    def take(self, cause: str, now: float) -> int | None:
        """None: leave this line out. Else how many were left out since the last one; `now` of any steady clock."""
        due, left_out = self._causes.get(cause, (now, 0))
        if now < due:
            self._causes[cause] = due, left_out + 1
            return None
        self._causes[cause] = now + INTERVAL_SECONDS, 0
        return left_out
