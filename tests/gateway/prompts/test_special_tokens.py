"""Where a text may be cut, and which tokenizers' texts may not."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.prompts.special_tokens import SpecialTokens


def token(content: str, token_id: int = 1, **fields: Any) -> dict[str, Any]:
    return {"id": token_id, "content": content, "normalized": False, **fields}


def declared(*tokens: dict[str, Any], normalizer: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"added_tokens": list(tokens), "normalizer": normalizer}


def test_the_longest_comes_first() -> None:
    special = SpecialTokens({"<a>": 1, "<a><b>": 2})
    assert special.split("x<a><b>y<a>") == ["x", "<a><b>", "y", "<a>", ""]


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
