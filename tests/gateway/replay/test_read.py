"""Reading traces: the three formats, and what is none of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gateway.replay.read import TraceError, read_trace
from gateway.replay.trace import Trace, infinite_cache_hit_rate
from gateway.routing.decision_log import LoggedDecision

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 0, "input_length": 1024, "output_length": 0, "hash_ids": [1, 9]},
    {"timestamp": 3000, "input_length": 500, "output_length": 7, "hash_ids": [7]},
    {"timestamp": 6000, "input_length": 90_000, "output_length": 7, "hash_ids": list(range(100, 276))},
]


def write(path: Path, rows: Iterable[object], *, packed: bool = False) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def read(path: Path, limit: int = 50_000) -> Trace:
    return read_trace(path, context_limit=limit)


@pytest.mark.parametrize("packed", [False, True])
def test_mooncake(tmp_path: Path, packed: bool) -> None:
    trace = read(write(tmp_path / "trace", MOONCAKE, packed=packed))
    assert (trace.block_tokens, trace.closed, trace.left_out, len(trace)) == (512, False, 1, 3)
    # Two requests of one stamp are spread over the time until the next; partial blocks have no key.
    assert [request.at for request in trace.requests] == [0, 1.5, 3]
    assert [request.keys for request in trace.requests] == [[1, 2], [1, 9], []]
    assert [request.reply_tokens for request in trace.requests] == [5, 1, 7]


def session(**changes: Any) -> dict[str, Any]:
    """Three requests over 40 blocks and more; tool and system parts are 16 and 8 blocks."""
    requests = [
        [0, 2600, 10, 1.0, 0.0, 0, [0, 40], "x"],
        [1, 3200, 10, 1.0, 100.0, 40, [40, 10], "x"],
        [2, 3200, 10, 1.0, 2.0, 32, [200, 17], "x"],
    ]
    fields = {"id": "s", "models": ["m"], "block_size": 64, "tool": 1024, "sys": 512, "reqs": requests}
    return fields | changes


def test_weka(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "trace", [session()]))
    (first,) = trace.requests
    second = first.following
    assert second is not None
    third = second.following
    assert third is not None
    assert third.following is None
    assert trace.closed
    assert trace.block_tokens == 512
    assert [len(request.keys) for request in (first, second, third)] == [5, 6, 6]
    assert second.keys[:5] == first.keys
    # The third keeps 32 blocks, four merged ones.
    assert third.keys[:4] == first.keys[:4]
    assert not set(third.keys[4:]) & set(second.keys)
    assert (second.think_seconds, third.think_seconds) == (60.0, 2.0)


def test_weka_sessions_share_tool_and_system_parts_of_equal_size(tmp_path: Path) -> None:
    sessions = [session(), session(id="t"), session(id="u", sys=1024), session(id="v", models=["n"])]
    trace = read(write(tmp_path / "trace", sessions))
    keys = {request.session: request.keys for request in trace.requests}

    def shared(one: str, other: str) -> int:
        return sum(a == b for a, b in zip(keys[one], keys[other], strict=False))

    # Tool part: two merged blocks. System part: one more.
    assert (shared("s", "t"), shared("s", "u"), shared("s", "v")) == (3, 2, 0)


def test_weka_sub_agents_are_sessions_and_long_sessions_are_cut(tmp_path: Path) -> None:
    sub = {"reqs": session()["reqs"][:2], "tool": 0, "sys": 0}
    requests = [*session()["reqs"], sub, [3, 60_000, 10, 1.0, 0.0, 0, [0, 900], "x"]]
    trace = read(write(tmp_path / "trace", [session(reqs=requests)]))
    assert len(trace.requests) == 2
    assert len(trace) == 5
    assert trace.left_out == 1


def test_a_gateways_own_log(tmp_path: Path) -> None:
    lines = [
        LoggedDecision(105.0, "p", "a", "completed", 64, 200, 0, [1, 2, 3], 0, None, 0.1),
        LoggedDecision(100.0, "p", "a", "completed", 64, 130, 0, [1, 2], 0, 33, 0.1, "s"),
    ]
    trace = read(write(tmp_path / "trace", [line.to_json().decode() for line in lines]))
    assert [(request.at, request.reply_tokens) for request in trace.requests] == [(-5.0, 33), (0.0, 256)]
    assert trace.block_tokens == 64
    assert trace.requests[1].keys == [1, 2, 3]


LOGGED: list[object] = [
    LoggedDecision(100.0 + number, "p", "a", "completed", 64, 130, 0, [1, 2]).to_json().decode() for number in range(2)
]


def test_damaged_lines_of_a_log_are_left_out_and_counted(tmp_path: Path) -> None:
    """The disk was full, or the log is still being written."""
    whole = str(LOGGED[0])
    trace = read(write(tmp_path / "trace", [*LOGGED, whole[:40] + whole, *LOGGED, whole[:100]]))
    assert (len(trace), trace.damaged, trace.left_out) == (4, 2, 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "it is empty"),
        (["[1]"], "line 1: a line is to be one JSON object"),
        ([{"a": 1}], "line 1: its fields are a; known are"),
        ([MOONCAKE[0], "{nonsense"], "line 2"),
        (
            [MOONCAKE[0], {"timestamp": 1, "hash_ids": []}, MOONCAKE[0]],
            "trace, line 2: the field 'input_length' is missing",
        ),
        ([MOONCAKE[0], MOONCAKE[0] | {"hash_ids": None}, MOONCAKE[0]], "trace, line 2: hash_ids is None"),
        ([MOONCAKE[0] | {"hash_ids": ["a", "b"]}], "hash_ids"),
        ([MOONCAKE[0] | {"hash_ids": [1, 2**64]}], "hash_ids"),
        ([MOONCAKE[0] | {"hash_ids": [[1]]}], "hash_ids"),
        ([MOONCAKE[0] | {"output_length": 5.5}], r"output_length is 5\.5"),
        ([MOONCAKE[0] | {"timestamp": "now"}], "timestamp is 'now'"),
        ([session(id="t"), session(models=[])], "trace: the session 's'"),
        ([session(), session(reqs=[[0, 5]])], "the session 's'"),
        ([session(reqs=[[0, 5.5, 10, 1.0, 0.0, 0, [0, 1], "x"]])], "whole numbers"),
        ([session(reqs=[[0, 5, 10, 1.0, 0.0, 0, [0, 10**12], "x"]])], "a range of 1000000000000 blocks"),
        ([session(block_size=0)], "block_size is 0"),
        ([*LOGGED, "{nonsense", "{}"], "trace, line 4: v is None"),
        ([MOONCAKE[3]], "no request of at most 50000 tokens"),
        ([{"v": 1, "prompt_tokens": 5, "keys": "zz"}], "keys"),
    ],
)
def test_what_is_no_trace_is_refused_with_file_line_and_reason(
    tmp_path: Path, rows: list[object], message: str
) -> None:
    path = write(tmp_path / "trace", rows)
    with pytest.raises(TraceError, match=message) as refused:
        read(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_or_cut_short(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "none")
    cut = tmp_path / "cut"
    cut.write_bytes(gzip.compress(json.dumps(MOONCAKE[0]).encode())[:30])
    with pytest.raises(TraceError, match="cut"):
        read(cut)
    packed = bytearray(gzip.compress(json.dumps(MOONCAKE).encode()))
    packed[20:40] = bytes(20)
    cut.write_bytes(packed)
    with pytest.raises(TraceError, match="cut"):
        read(cut)


def test_the_bound_is_what_one_endless_cache_would_find(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}] * 10
    trace = read(write(tmp_path / "trace", rows))
    # The first tenth, which computes the blocks, is not counted; a hit leaves a token to compute.
    assert infinite_cache_hit_rate(trace) == pytest.approx(1023 / 1024)
