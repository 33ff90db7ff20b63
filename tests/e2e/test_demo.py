"""`warmroute demo --json` as a user runs it, held to the figures that it must show."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_the_demo_shows_what_it_must() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "warmroute", "demo", "--json"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["warm_turns_on_warm_worker"] == 3
    assert figures["max_abs_predicted_minus_reported"] <= 64
    assert figures["ttft_ratio_cold_over_warm"] >= 3
    assert figures["round_robin_ttft_ratio_cold_over_later"] < 3
    assert len(figures["turns"]) == 8
    assert all(turn["reply"] for turn in figures["turns"])
