"""The benchmark of prompts runs, and says what it promises."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bench.prompts import main
from bench.prompts.chats import SESSIONS, chats, sessions
from bench.prompts.run import TEXTS
from gateway.prompts.tokenizer import PromptTokenizer
from worker.model_cache import ensure_model

PROMISED = ("follow_up_8k_us", "cold_mb_per_s", "warm_over_baseline", "cold_over_baseline", "baseline_8k_us")


def test_a_short_run_ends_with_one_json_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TEXTS, raising=False)
    assert main(["--quick", "--json", "--seed", "7"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    figures = json.loads(line)
    assert figures["seed"] == 7
    assert figures["quick"] is True
    assert figures["texts"].startswith("generated")
    for name in PROMISED:
        assert figures[name] > 0, name
    assert figures["goals"] == {}  # those of a few chats mean nothing


def test_a_folder_without_texts_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(TEXTS, str(tmp_path))
    assert main(["--quick"]) == 1
    assert SESSIONS in capsys.readouterr().err


def test_recorded_calls_become_chats(tmp_path: Path) -> None:
    """Each call's prompt holds those before it and their answers."""
    prompt, calls = "the task", []
    for number in range(6):
        calls.append({"session_id": "s", "timestamp": number, "input": prompt, "output": f"answer {number}"})
        prompt += f"\n\nanswer {number}\n\nresult {number}"
    with gzip.open(tmp_path / SESSIONS, "wt") as file:
        file.writelines(json.dumps(call) + "\n" for call in reversed(calls))
    (session,) = sessions(tmp_path, seed=1)
    assert [message["content"].strip() for message in session[:3]] == ["the task", "answer 0", "result 0"]
    made = chats([session], 10, 1, PromptTokenizer.from_folder(ensure_model()))
    assert made[0].second[: len(made[0].first)] == made[0].first
    assert made[0].first[-1]["role"] == made[0].second[-1]["role"] == "user"
