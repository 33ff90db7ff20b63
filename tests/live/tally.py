"""What all live tests together measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """One request; all but its name and blocks in tokens."""

    test: str
    index_tokens: int
    prompt: int
    predicted: int
    reported: int
    at_once: bool
    """With others that may have evicted what was expected, before its turn came."""

    @property
    def difference(self) -> int:
        return self.reported - self.predicted


@dataclass
class Tally:
    rows: list[Row] = field(default_factory=list)
    removed: dict[str, int] = field(default_factory=dict)
    """Engine blocks that the engines said they evicted, by test."""

    def lines(self) -> list[str]:
        """A line for each test, and one for all."""
        settled = [row for row in self.rows if not row.at_once]
        tests = dict.fromkeys((row.test, row.at_once) for row in self.rows)
        lines = []
        for test, at_once in tests:
            rows = [row for row in self.rows if (row.test, row.at_once) == (test, at_once)]
            lines.append(_line(f"{test}, at once" if at_once else test, rows))
            if not at_once:
                lines[-1] += f"; {self.removed.get(test, 0)} engine blocks evicted"
        evicted = sum(self.removed.values())
        return [*lines, f"{_line('all but those at once', settled)}; {evicted} engine blocks evicted"]


def _line(name: str, rows: Sequence[Row]) -> str:
    differences = [row.difference for row in rows] or [0]
    off = sum(not 0 <= row.difference < row.index_tokens for row in rows)
    return (
        f"{name}: {len(rows)} requests, {sum(row.reported > 0 for row in rows)} of them warm "
        f"({sum(row.reported for row in rows)} of {sum(row.prompt for row in rows)} tokens), reported less predicted "
        f"{min(differences)} to {max(differences)} tokens, by less than 0 or an index block or more in {off}"
    )


TALLY = Tally()
