"""The chaos bench runs, says what it promises, and leaves no process behind; and nothing is lost."""

from __future__ import annotations

import json
import sys

import pytest

from tests.bench.support import none_left, started

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench lowers limits of running processes")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_short_run_loses_nothing_and_ends_with_one_json_object() -> None:
    with started("-m", "bench.chaos", "--quick", "--seed", "7") as process:
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    figures = json.loads(out.splitlines()[-1])
    assert (figures["bench"], figures["seed"], figures["quick"]) == ("chaos", 7, True)
    assert figures["lost"] == 0, out
    assert figures["unhealed"] == [], out
    assert figures["cells"] == 4
    assert figures["asked"] > 100
    assert figures["broken_streams"] >= 0
    assert figures["worst_heal_seconds"] > 0
    assert figures["worst_cell"] in {"gateway/kill", "worker/reset", "redis/reset", "indexer/stop"}
    assert all(each["cell"] and each["reason"] for each in figures["left_out"])
    assert figures["goals"] == {}  # of small sizes none is judged
    assert none_left(process.pid)


def test_what_is_left_out_is_no_cell() -> None:
    with started("-m", "bench.chaos", "--only", "redis/full disk") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "redis/full disk is left out: the embedded server writes nothing" in err


def test_without_an_api_server_its_cells_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMROUTE_TEST_MINIAPI", raising=False)
    with started("-m", "bench.chaos", "--only", "api-server/kill") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "api-server/kill is left out: etcd is missing, or WARMROUTE_TEST_MINIAPI does not name" in err
