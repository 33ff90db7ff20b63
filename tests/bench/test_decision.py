"""The benchmark of decisions runs, and says what it promises."""

from __future__ import annotations

from bench.decision import measure


def test_both_forms_are_measured_at_every_number_of_workers() -> None:
    figures = measure(3, {2: 1, 5: 1})
    for workers in (2, 5):
        name = f"decision_{workers}_workers"
        forms = [figures[f"{name}_{form}_us"] for form in ("tokens", "seconds")]
        assert figures[f"{name}_us"] == max(forms)
        assert min(forms) > 0
        assert figures[f"{name}_match_us"] > 0
        assert figures[f"{name}_round_robin_us"] > 0
        assert figures[f"request_{workers}_workers_us"] > 0
