"""The bench of the index runs as a command, says what it must, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISED = {
    "match_over_naive",
    "match_128x100_us",
    "match_128x100_naive_us",
    "match_3750x96_us",
    "mirror_bytes_per_key",
    "mirror_bytes_per_key_1000_slots",
    "redis_bytes_per_worker_key",
    "mirror_apply_keys_per_s",
    "end_to_end_keys_per_s",
    "end_to_end_over_hset",
    "hset_pairs_per_s",
    "lag_p99_ms",
    "mirror_longest_slice_ms",
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def children_of(pid: int) -> list[str]:
    """Command lines of living processes that this one started, or that were started for it."""
    mark = f"WARMROUTE_PARENT_PID={pid}\0".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes() + b"\0":
                found.append((folder / "cmdline").read_text())
        except OSError:  # it has ended, or is not ours
            continue
    return found


def none_left(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while children_of(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_the_last_line_is_json_with_every_promised_figure() -> None:
    process = start("-m", "bench.index", "--quick", "--seed", "7")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    figures = json.loads(out.splitlines()[-1])
    assert figures.keys() >= PROMISED
    assert (figures["bench"], figures["seed"], figures["quick"]) == ("index", 7, True)
    assert all(figures[name] > 0 for name in PROMISED)
    # A set of integers has 8 bytes a key, a dict's entry 24 without its key and value.
    assert figures["redis_bytes_per_worker_key"] >= 8
    assert figures["mirror_bytes_per_key"] > 50
    assert figures["lag_p50_ms"] <= figures["lag_p99_ms"] <= figures["lag_max_ms"]
    assert figures["goals"] == {}  # of small sizes none is judged
    assert none_left(process.pid)


def test_bench_index_takes_flags_and_prints_json_only() -> None:
    process = start("-m", "bench", "index", "--quick", "--json", "--only", "keys")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out)["keys_8192_tokens_us"] > 0


def test_flags_without_a_name_are_refused() -> None:
    process = start("-m", "bench", "--quick")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "python -m bench NAME --quick" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes(number: signal.Signals) -> None:
    process = start("-m", "bench.index", "--quick", "--only", "path")
    assert process.stderr is not None
    for line in process.stderr:
        if "starting the indexer" in line:
            break
    else:
        pytest.fail("it ended early")
    assert children_of(process.pid)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert none_left(process.pid)
