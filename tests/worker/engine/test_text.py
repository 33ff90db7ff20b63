from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.text import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    strings = StopStrings(stops)
    sent = []
    for piece in pieces:
        text, stopped = strings.push(piece)
        sent.append(text)
        if stopped:
            return sent, True
    return [*sent, strings.flush()], False


@given(st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.lists(st.text("abc", max_size=3), max_size=12))
def test_whatever_the_pieces_the_text_ends_before_the_first_stop(stops: list[str], pieces: list[str]) -> None:
    sent, stopped = run(stops, pieces)
    text, whole = "".join(sent), "".join(pieces)
    assert stopped == any(stop in whole for stop in stops)
    assert not any(stop in text for stop in stops)
    if stopped:
        assert any(whole.startswith(text + stop) for stop in stops)
    else:
        assert text == whole


def test_only_what_may_begin_a_stop_is_held_back() -> None:
    assert run(["END"], ["ab", "cE", "N", "x", "EN", "D", "more"]) == (["ab", "c", "", "ENx", "", ""], True)
    assert run(["END"], ["abE"]) == (["ab", "E"], False)
    assert run([], ["a", "b"]) == (["a", "b", ""], False)
