"""One line a second for each cause, and a count of those left out."""

from __future__ import annotations

from warmroute.process.log_limit import LogLimit


def test_lines_of_a_cause_are_a_second_apart_and_say_how_many_were_left_out() -> None:
    limit = LogLimit()
    assert limit.take("a", 10.0) == 0
    assert [limit.take("a", 10.0 + tenths / 10) for tenths in range(1, 10)] == [None] * 9
    assert limit.take("b", 10.5) == 0
    assert limit.take("a", 11.0) == 9
    assert limit.take("a", 12.5) == 0
