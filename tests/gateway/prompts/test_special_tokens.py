"""Where a text may be cut, and which tokenizers' texts may not."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts import special_tokens
from gateway.prompts.special_tokens import MOST_CHARACTERS, MOST_TOKENS, SpecialTokens


def token(content: str, token_id: int = 1, **fields: Any) -> dict[str, Any]:
    return {"id": token_id, "content": content, "normalized": False, **fields}


def declared(*tokens: dict[str, Any], normalizer: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"added_tokens": list(tokens), "normalizer": normalizer}


def test_the_longest_comes_first() -> None:
    special = SpecialTokens({"<a>": 1, "<a><b>": 2})
    assert special.split("x<a><b>y<a>") == ["x", "<a><b>", "y", "<a>", ""]


@given(st.lists(st.sampled_from(["<a>", "<a><b>", "<b>", "<", "a>", "x" * 40, "\n"]), max_size=60))
def test_long_texts_are_cut_as_short_ones(fragments: list[str]) -> None:
    text = "".join(fragments)
    special = SpecialTokens({"<a>": 1, "<a><b>": 2, "<b>": 3})
    whole = special.split(text)
    with pytest.MonkeyPatch.context() as patch:
        for stretch in (1, 2, 7, 50):
            patch.setattr(special_tokens, "STRETCH", stretch)
            assert special.split(text) == whole


words = st.text("ab<>|.*(\n", min_size=1, max_size=6)


@given(st.sets(words, min_size=1, max_size=12), st.lists(words, max_size=30))
def test_the_longest_is_found_wherever_one_begins(contents: set[str], fragments: list[str]) -> None:
    text = "".join(fragments)
    longest_first = sorted(contents, key=len, reverse=True)
    expected = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    assert SpecialTokens(dict.fromkeys(contents, 1)).split(text) == expected


@given(st.sets(words, min_size=1, max_size=4), st.sets(words, min_size=1, max_size=4))
def test_two_kinds_overlap_where_two_of_theirs_do(first: set[str], others: set[str]) -> None:
    def touch(one: str, other: str) -> bool:
        places = range(-len(other) + 1, len(one))
        return any(
            all(one[at] == other[at - by] for at in range(max(by, 0), min(len(one), by + len(other)))) for by in places
        )

    others -= first
    if others:
        special = SpecialTokens.of(declared(*map(token, first), *(token(each, normalized=True) for each in others)))
        assert (special is None) == any(touch(one, other) for one in first for other in others)


def test_thousands_of_tokens_cost_no_more_than_a_few() -> None:
    """Gemma has as many. Tried one by one, they took 4 s to look at, and a millisecond at each of a text's places."""
    ids = {f"<unused{number}>": number for number in range(MOST_TOKENS)}
    text = "<p>text</p>\n<unused7>" * 2_000
    begun = time.process_time()
    special = SpecialTokens.of(declared(*(token(content, token_id) for content, token_id in ids.items())))
    assert special is not None
    assert special.self_contained
    assert len(special.split(text)) == 4_001
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("contents", [[f"<{n}>" for n in range(MOST_TOKENS + 1)], ["<" * (MOST_CHARACTERS + 1)]])
def test_more_than_any_model_has_are_none(contents: list[str]) -> None:
    assert SpecialTokens.of(declared(*map(token, contents))) is None


def test_nested_names_are_found() -> None:
    ids = {"x" * length: length for length in range(1, MOST_CHARACTERS + 1)}
    assert SpecialTokens(ids).split("x" * 130 + "y") == ["", "x" * 100, "", "x" * 30, "y"]


@pytest.mark.parametrize(
    ("contents", "self_contained"),
    [
        (["<a>", "<b>"], True),
        (["<a>", "x<a>"], True),  # ends where the other ends
        (["<a>", "<a>x"], False),  # a text that ends with the one may go on to be the other
        (["<a>", "x<a>x"], False),
    ],
)
def test_whether_later_text_can_move_a_boundary(contents: list[str], self_contained: bool) -> None:
    assert SpecialTokens({content: place for place, content in enumerate(contents)}).self_contained == self_contained


@pytest.mark.parametrize("field", ["single_word", "lstrip", "rstrip"])
def test_tokens_that_reach_beyond_themselves_are_no_boundaries(field: str) -> None:
    assert SpecialTokens.of(declared(token("<a>"), token("<b>", **{field: True}))) is None


def test_tokens_of_normalised_text_are_none_where_text_is_normalised() -> None:
    assert SpecialTokens.of(declared(token("<a>", normalized=True))) is not None
    assert SpecialTokens.of(declared(token("<a>", normalized=True), normalizer={"type": "NFC"})) is None


@pytest.mark.parametrize(("other", "boundaries"), [("<b>", True), ("<a>x", False), ("x<a>", False), (">y", False)])
def test_two_kinds_that_can_overlap_are_none(other: str, boundaries: bool) -> None:
    """The library looks for one kind first, then for the other in what is left."""
    special = SpecialTokens.of(declared(token("<a>"), token(other, 2, normalized=True)))
    assert (special is not None) == boundaries


def test_a_model_without_any_has_none() -> None:
    assert SpecialTokens.of(declared()) is None
    assert SpecialTokens.of({}) is None
