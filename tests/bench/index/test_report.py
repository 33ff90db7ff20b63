"""Figures become lines and JSON; a goal says whether it was met."""

from __future__ import annotations

import json

import pytest

from bench.index.report import Report


def test_goals_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.add("fast_us", 12.3456, "it", unit=" us", at_most=30)
    report.add("rate", 50.0, "that", at_least=100)
    out = capsys.readouterr().out.splitlines()
    assert "12.35 us" in out[0]
    assert out[0].endswith("goal at most 30 us: met")
    assert out[1].endswith("goal at least 100: MISSED")
    figures = json.loads(report.to_json())
    assert figures["fast_us"] == 12.3456
    assert figures["goals"]["rate"] == {"bound": "at least", "goal": 100, "met": False}


def test_json_only_prints_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(json_only=True)
    report.heading("heading")
    report.progress("progress")
    report.add("figure", 1.0, "text")
    assert capsys.readouterr() == ("", "")
