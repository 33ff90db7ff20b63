"""The bench of the index runs as a command, says what it must, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.bench.support import children_of, none_left, started

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


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_last_line_is_json_with_every_promised_figure() -> None:
    with started("-m", "bench.index", "--quick", "--seed", "7") as process:
        out, err = process.communicate(timeout=180)
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
    with started("-m", "bench", "index", "--quick", "--json", "--only", "keys") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out)["keys_8192_tokens_us"] > 0


def test_flags_without_a_name_are_refused() -> None:
    with started("-m", "bench", "--quick") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "python -m bench NAME --quick" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes(number: signal.Signals) -> None:
    with started("-m", "bench.index", "--quick", "--only", "path") as process:
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
