from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.self_check import ASK_AGAIN_SECONDS, FAILURES, LEAST, MOST_AGAIN, WINDOW, SelfCheck, TokenIdSource


def distrusted() -> SelfCheck:
    check = SelfCheck()
    changes = [check.compare(10, 11) for _ in range(LEAST)]
    assert changes == [False] * (LEAST - 1) + [True]
    return check


def test_replies_that_agree_change_nothing() -> None:
    check = SelfCheck()
    assert not any(check.compare(number, number) for number in range(200))
    assert check.source(0.0) is TokenIdSource.GATEWAY
    assert check.last_difference is None


def test_many_differences_turn_to_the_engine() -> None:
    check = distrusted()
    assert check.source(0.0) is TokenIdSource.ENGINE
    assert check.last_difference == (10, 11)


def test_one_kind_of_prompt_that_goes_wrong_does_not() -> None:
    check = SelfCheck()
    assert not any(check.compare(10, 10 + (number % 4 == 0)) for number in range(400))


def test_trust_comes_back_after_a_window_of_right_ones() -> None:
    check = distrusted()
    assert not any(check.compare(5, 5) for _ in range(WINDOW - 1))
    assert check.compare(5, 5)
    assert check.source(0.0) is TokenIdSource.GATEWAY


def test_one_kind_of_prompt_that_goes_wrong_does_not_keep_trust_away() -> None:
    check = distrusted()
    assert not any(check.compare(10, 10 + (number % 4 == 0)) for number in range(WINDOW - 1))
    assert check.compare(5, 5)
    assert check.trusted


def test_too_many_wrong_ones_keep_trust_away() -> None:
    check = distrusted()
    assert not any(check.compare(10, 10 + (number % 3 == 0)) for number in range(400))
    assert not any(check.compare(5, 5) for _ in range(5))
    assert any(check.compare(5, 5) for _ in range(WINDOW))


def test_an_engine_that_cannot_say_is_asked_again_later() -> None:
    check = distrusted()
    assert check.ask_failed(100.0, unserved=True)
    assert check.source(100.0) is TokenIdSource.NONE
    assert check.source(100.0 + ASK_AGAIN_SECONDS) is TokenIdSource.ENGINE


def test_failures_in_a_row_leave_the_engine_alone() -> None:
    check = distrusted()
    for _ in range(FAILURES - 1):
        assert not check.ask_failed(1.0, unserved=False)
    check.asked()
    for _ in range(FAILURES - 1):
        assert not check.ask_failed(1.0, unserved=False)
    assert check.source(1.0) is TokenIdSource.ENGINE
    assert check.ask_failed(1.0, unserved=False)
    assert check.source(1.0) is TokenIdSource.NONE


@given(st.lists(st.booleans(), max_size=300))
def test_the_verdict_is_of_the_last_replies(differences: list[bool]) -> None:
    """Against a list of the comparisons since the last change."""
    check, since, trusted = SelfCheck(), [], True
    for differs in differences:
        since.append(differs)
        last = since[-WINDOW:]
        expected = sum(last) >= LEAST if trusted else len(last) == WINDOW and sum(last) <= MOST_AGAIN
        assert check.compare(1, 1 + differs) is expected
        if expected:
            trusted, since = not trusted, []
        assert check.trusted is trusted
