"""Figures as they come: a line for a person at once, one JSON object at the end."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field


@dataclass
class Report:
    """Collects figures. `json_only` leaves out the lines for people."""

    json_only: bool = False
    judged: bool = True
    """Whether figures are held against their goals: those of small sizes mean little."""
    figures: dict[str, float | int | str | bool] = field(default_factory=dict)
    goals: dict[str, dict[str, float | bool | str]] = field(default_factory=dict)

    def progress(self, text: str) -> None:
        """What runs now, on stderr."""
        if not self.json_only:
            print(f"... {text}", file=sys.stderr, flush=True)

    def heading(self, text: str) -> None:
        if not self.json_only:
            print(f"\n{text}", flush=True)

    def add(
        self,
        name: str,
        value: float,
        text: str,
        *,
        unit: str = "",
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """One figure: its name in the JSON, and a line such as `text   12.3 us   goal at most 30 us: met`."""
        self.figures[name] = round(value, 4)
        verdict = ""
        for bound, word, met in (
            (at_most, "at most", at_most is not None and value <= at_most),
            (at_least, "at least", at_least is not None and value >= at_least),
        ):
            if bound is not None and self.judged:
                self.goals[name] = {"bound": word, "goal": bound, "met": met}
                verdict = f"   goal {word} {_short(bound)}{unit}: {'met' if met else 'MISSED'}"
        if not self.json_only:
            print(f"  {text:<66}{_short(value):>10}{unit}{verdict}", flush=True)

    def note(self, name: str, value: str | bool) -> None:
        """A fact about the run, in the JSON only."""
        self.figures[name] = value

    def to_json(self) -> str:
        """One line."""
        return json.dumps({**self.figures, "goals": self.goals})


def _short(value: float) -> str:
    """Four digits at least, whole numbers where there are more."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
