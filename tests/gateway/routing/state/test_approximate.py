"""The approximate index against a naive twin: a list of keys a worker, latest last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.state.approximate import ApproximateIndex


def depths(index: ApproximateIndex, keys: list[int]) -> dict[str, int]:
    return {worker: match.blocks for worker, match in index.match(keys).items()}


def test_a_computed_prompt_is_held() -> None:
    index = ApproximateIndex()
    index.computed("a", [1, 2, 3])
    index.computed("b", [1, 9])
    assert depths(index, [1, 2, 7]) == {"a": 2, "b": 1}
    assert depths(index, [5]) == {}


def test_a_full_worker_loses_the_oldest_prompts_tail_first() -> None:
    index = ApproximateIndex()
    index.computed("a", [1, 2, 3], 4)
    index.computed("a", [10, 11, 12], 4)
    assert depths(index, [1, 2, 3]) == {"a": 1}
    assert depths(index, [10, 11, 12]) == {"a": 3}
    index.computed("a", list(range(20, 30)), 4)
    assert depths(index, list(range(20, 30))) == {"a": 4}


def test_what_is_used_again_stays() -> None:
    index = ApproximateIndex()
    for keys in ([1, 2], [3, 4], [1, 2], [5, 6]):
        index.computed("a", keys, 4)
    assert depths(index, [1, 2]) == {"a": 2}
    assert depths(index, [3, 4]) == {}


def test_a_worker_that_leaves_takes_its_keys_along() -> None:
    index = ApproximateIndex()
    index.computed("a", [1, 2])
    index.computed("b", [1])
    index.forget("a")
    index.forget("never there")
    assert depths(index, [1, 2]) == {"b": 1}
    # What it left is cleared little by little.
    for _ in range(50):
        index.computed("b", [1])
    assert (len(index), index.keys) == (1, 1)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 8), min_size=1, max_size=5, unique=True)), max_size=30
    ),
    st.lists(st.integers(0, 8), min_size=1, max_size=5, unique=True),
    st.integers(1, 6),
)
def test_it_equals_its_naive_twin(steps: list[tuple[str, list[int]]], asked: list[int], capacity: int) -> None:
    index = ApproximateIndex()
    naive: dict[str, list[int]] = {}
    for worker, keys in steps:
        index.computed(worker, keys, capacity)
        kept = keys[:capacity]
        held = [key for key in naive.get(worker, []) if key not in kept] + kept[::-1]
        naive[worker] = held[-capacity:]
    expected = {}
    for worker, held in naive.items():
        depth = 0
        while depth < len(asked) and asked[depth] in held:
            depth += 1
        if depth:
            expected[worker] = depth
    assert depths(index, asked) == expected
