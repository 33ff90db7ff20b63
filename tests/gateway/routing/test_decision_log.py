"""The decision log's lines: written, read, and refused by field."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.decision_log import LoggedDecision

DECISION = LoggedDecision(12.5, "chat", "vllm-0", "completed", 64, 130, 64, [1, 2**64 - 1], 64, 20, 0.25, "s")


@given(
    st.builds(
        LoggedDecision,
        time=st.floats(0, 1e10),
        pool=st.text(max_size=5),
        worker=st.text(max_size=5),
        outcome=st.sampled_from(["completed", "broken"]),
        block_tokens=st.integers(1, 1024),
        prompt_tokens=st.integers(1, 10**6),
        matched_tokens=st.integers(0, 10**6),
        keys=st.lists(st.integers(0, 2**64 - 1), max_size=5),
        cached_tokens=st.none() | st.integers(0, 10**6),
        reply_tokens=st.none() | st.integers(0, 10**6),
        first_byte_seconds=st.none() | st.floats(0, 1e6),
        session=st.text(max_size=5),
    )
)
def test_a_line_is_read_as_it_was_written(decision: LoggedDecision) -> None:
    line = decision.to_json()
    assert b"\n" not in line
    assert LoggedDecision.from_fields(orjson.loads(line)) == decision


def test_fields_of_later_releases_are_ignored() -> None:
    fields = orjson.loads(DECISION.to_json()) | {"mood": "good"}
    assert LoggedDecision.from_fields(fields) == DECISION


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", 2),
        ("keys", 5),
        ("keys", "abc"),
        ("keys", "x" * 16),
        ("prompt_tokens", 0),
        ("prompt_tokens", True),
        ("block_tokens", "64"),
        ("time", None),
        ("first_byte_seconds", -1),
        ("cached_tokens", 1.5),
    ],
)
def test_what_is_no_such_line_is_refused_by_its_field(field: str, value: Any) -> None:
    fields = orjson.loads(DECISION.to_json()) | {field: value}
    with pytest.raises(ValueError, match=field):
        LoggedDecision.from_fields(fields)
