"""What the sequence number of a batch says: the next, one missed, one seen before, or another life of the engine.

Engines number their batches from 0 in each life, and nothing else marks a life: no heartbeat, no epoch. A batch with a
number that was seen is a repeat (of a replay) when its time is no later than the last one's, else a new life.
"""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What to do with a batch."""

    APPLY = "apply"
    REPEAT = "repeat"
    """It was applied already."""
    GAP = "gap"
    """Batches before it are missing: ask for `Sequence.resume_from` on, then offer it again."""
    NEW_LIFE = "new_life"
    """The engine started anew: forget everything, then offer it again."""


class Sequence:
    """The place in one rank's stream. `last` is None before the first batch of a life."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.began_at = 0.0
        """The engine's time of the first batch seen of this life; 0 before it."""
        self._at = 0.0

    @property
    def resume_from(self) -> int:
        """The number to ask a replay for: the last one seen comes again, and shows whether it is the same life."""
        return 0 if self.last is None else self.last

    def judge(self, number: int, at: float) -> Verdict:
        """What batch `number`, published `at` by the engine's clock, is; changes nothing."""
        if self.last is None:
            return Verdict.APPLY if number == 0 else Verdict.GAP
        if number <= self.last:
            return Verdict.REPEAT if at <= self._at else Verdict.NEW_LIFE
        return Verdict.APPLY if number == self.last + 1 else Verdict.GAP

    def advance(self, number: int, at: float) -> None:
        """The batch was applied, or what is missing before it is given up."""
        self.last = number
        self._at = at
        self.began_at = self.began_at or at

    def skip(self, number: int) -> None:
        """The next batch cannot be read: it is left out. Any other number stays what it is, a gap or a repeat."""
        if number == (0 if self.last is None else self.last + 1):
            self.last = number

    def restart(self) -> None:
        """Another life: nothing was seen of it."""
        self.last = None
        self.began_at = 0.0
        self._at = 0.0
