"""Predictions of which every eighth key is known, against a naive twin that asks for every block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.state.sparse import STRIDE, SparsePredictions, sparse_keys


def test_a_sibling_is_credited_what_it_surely_shares() -> None:
    predictions = SparsePredictions()
    routed = list(range(100))
    predictions.predict("w", sparse_keys(routed, 0, 256))
    # 93 blocks in common: known are 7, 15 ... 87.
    assert predictions.match([*range(93), *range(1000, 1007)]) == {"w": 88}
    assert predictions.match(routed) == {"w": 96}
    assert predictions.match(list(range(7))) == {}
    assert predictions.match(list(range(8))) == {"w": 8}


def test_blocks_that_were_confirmed_already_need_not_be_told() -> None:
    predictions = SparsePredictions()
    told = sparse_keys(list(range(100)), 50, 256)
    assert list(told) == [55, 63, 71, 79, 87, 95]
    predictions.predict("w", told)
    assert predictions.match(list(range(60))) == {"w": 56}
    # What was there before is the confirmed index's to say.
    assert predictions.match(list(range(50))) == {}


def test_the_limit_keeps_the_first() -> None:
    assert list(sparse_keys(list(range(1000)), 3, 2)) == [7, 15]


@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 80))
def test_the_credit_is_never_more_than_what_is_shared_and_at_most_seven_blocks_less(
    length: int, start: int, shared: int
) -> None:
    shared = min(shared, length)
    routed = list(range(length))
    told = sparse_keys(routed, start, 256)
    assert all(key % STRIDE == STRIDE - 1 and key >= start for key in told)
    predictions = SparsePredictions()
    predictions.predict("w", told)
    credit = predictions.match([*routed[:shared], *range(1000, 1010)]).get("w", 0)
    assert credit <= shared
    if shared > start + STRIDE:
        assert credit > shared - STRIDE
