"""The memo keeps to its bytes, forgets the least recently used, and agrees with a dictionary otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.bounded_memo import LARGEST_SHARE, BoundedMemo

LIMIT = 40


def memo() -> BoundedMemo[int, bytes]:
    return BoundedMemo(LIMIT, lambda _, value: len(value))


operations = st.lists(st.tuples(st.sampled_from(["put", "get", "discard"]), st.integers(0, 9), st.integers(1, 15)))


@given(operations)
def test_it_agrees_with_a_naive_twin(steps: list[tuple[str, int, int]]) -> None:
    ours, twin = memo(), list[tuple[int, bytes]]()
    for operation, key, size in steps:
        held = dict(twin)
        if operation == "get":
            assert ours.get(key) == held.get(key)
            if key in held:
                twin = [entry for entry in twin if entry[0] != key] + [(key, held[key])]
        elif operation == "discard" or size <= LIMIT // LARGEST_SHARE:
            twin = [entry for entry in twin if entry[0] != key]
            if operation == "put":
                twin.append((key, bytes(size)))
            while sum(len(value) for _, value in twin) > LIMIT:
                twin.pop(0)
            ours.put(key, bytes(size)) if operation == "put" else ours.discard(key)
        else:
            ours.put(key, bytes(size))  # too large to keep
        assert ours.size == sum(len(value) for _, value in twin) <= LIMIT
        assert len(ours) == len(twin)
    assert ours.get_all(range(10)) == [dict(twin).get(key) for key in range(10)]


def test_an_entry_that_would_push_out_the_rest_is_not_kept() -> None:
    ours = memo()
    ours.put(1, b"a")
    ours.put(2, bytes(LIMIT // LARGEST_SHARE + 1))
    assert ours.get_all([1, 2]) == [b"a", None]


def test_clearing_forgets_all() -> None:
    ours = memo()
    ours.put(1, b"a")
    ours.clear()
    assert (len(ours), ours.size, ours.get(1)) == (0, 0, None)
