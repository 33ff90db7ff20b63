"""`warmroute replay`, as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.replay.plot import PlotError, plot
from gateway.routing.decision_log import LoggedDecision
from warmroute.cli.main import main
from warmroute.cli.replay import parse_policy
from warmroute.config.pool import Weights
from warmroute.process.lifecycle import StartupError

TRACE = Path(__file__).parents[3] / "bench/data/mooncake_conversation_2000.jsonl.gz"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """120 requests of four prompts."""
    rows = [
        {"timestamp": 100 * number, "input_length": 2100, "output_length": 20, "hash_ids": [4 * (number % 4)] * 1}
        for number in range(120)
    ]
    for row in rows:
        row["hash_ids"] = [row["hash_ids"][0] * 10 + place for place in range(5)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_table_of_all_policies(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace), "--speed", "2", "--workers", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["policy", "mean", "s"]
    assert [line.split()[0] for line in lines[1:7]] == [
        "warm",
        "lmetric",
        "consistent_hash",
        "least_requests",
        "power_of_two",
        "round_robin",
    ]
    assert "120 requests, 2 times as fast as recorded, over 3 workers (8b)" in lines[8]
    assert lines[9].startswith("One endless cache would find 97.")


def test_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--policy", "warm,warm:tokens:g=1,round_robin", "--runs", "2", "--gateways", "2", "--events", "false"]
    assert main(["replay", str(trace), "--json", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["policy"] for each in found["policies"]] == ["warm", "warm:tokens:g=1", "round_robin"]
    assert found["settings"]["gateways"] == 2
    assert found["infinite_cache_hit_rate"] == pytest.approx(2048 / 2100, abs=0.001)
    assert all(0 < each["ttft_mean"] < 10 for each in found["policies"])


def test_the_machine_can_be_described(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def mean(*arguments: str) -> float:
        assert main(["replay", str(trace), "--json", "--policy", "round_robin", *arguments]) == 0
        return float(json.loads(capsys.readouterr().out)["policies"][0]["ttft_mean"])

    normal = mean()
    assert mean("--prefill-tokens-per-second", "5000") > 2 * normal
    assert mean("--slow-workers", "8", "--slow-factor", "3") > 2 * normal
    assert mean("--workers", "3", "--cache-tokens", "3400") > 2 * mean("--workers", "3")


def test_a_picture(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / "ttft.png"
    assert main(["replay", str(trace), "--policy", "warm,round_robin", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {picture}" in capsys.readouterr().err
    assert main(["replay", str(trace), "--policy", "warm", "--plot", str(tmp_path / "no/ttft.png")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(PlotError, match=r"pip install 'warmroute\[plot\]'"):
        plot(tmp_path / "x.png", "x", [], {}, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "warmest"], "'warmest' is no policy; there are: warm, "),
        (["--policy", "lmetric:g=2"], "only warm has weights"),
        (["--policy", "warm:seconds"], "'seconds' is neither tokens nor a weight"),
        (["--policy", "warm:g=lots"], "the weight g is refused"),
        (["--policy", "warm:mass=1"], "there are: g, w, "),
        (["--policy", "warm,warm"], "names one twice"),
        (["--slow-workers", "9"], "9 of 8 workers cannot be slow"),
        (["--context-limit", "50"], "no request of at most 50 tokens"),
        (["--cache-tokens", "1024"], "no request was finished"),
        (["--workers", "0"], "replay.workers"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["replay", str(trace), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_trace_of_one_request_and_one_with_damaged_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = LoggedDecision(100.0, "p", "a", "completed", 64, 130, 0, [1, 2]).to_json().decode()
    path = tmp_path / "log"
    path.write_text(f"{line}\n{line[:50]}")
    assert main(["replay", str(path), "--policy", "warm"]) == 0
    out = capsys.readouterr().out
    assert "log: 1 requests" in out
    assert "damaged: 1." in out


def test_a_trace_that_spans_years_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where a clock was wrong at first: every worker's reports over all that time would take forever."""
    path = tmp_path / "trace"
    rows = [{"timestamp": at, "input_length": 10, "output_length": 1, "hash_ids": []} for at in (0, 1.7e12)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert main(["replay", str(path), "--policy", "warm"]) == 2
    assert "span 1.97e+04 days, at 1 times their speed" in capsys.readouterr().err


def test_policies_as_they_are_written() -> None:
    setting = parse_policy("warm:tokens:g=1.5:w=0")
    assert setting.in_tokens
    assert setting.weights == Weights(g=1.5, w=0)
    with pytest.raises(StartupError):
        parse_policy("")


def test_the_projects_own_trace_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(TRACE), "--speed", "3", "--policy", "warm", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["policies"]
    assert found["requests"] == 1993
    assert 0.05 < found["hit_rate"] < 0.315
