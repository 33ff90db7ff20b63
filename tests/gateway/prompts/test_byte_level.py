"""Which tokenizers are rebuilt by rank, and which are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.prompts.byte_level import NotRebuildableError, byte_characters, rebuild


@pytest.fixture
def declared(smollm2: Path) -> dict[str, Any]:
    return json.loads((smollm2 / "tokenizer.json").read_text(encoding="utf-8"))


def test_the_built_in_models_tokenizer_is_rebuilt(declared: dict[str, Any]) -> None:
    bpe = rebuild(declared)
    vocabulary = declared["model"]["vocab"]
    assert bpe.ranks[b" the"] == vocabulary["Ġthe"]
    assert bpe.ranks[b"\n"] == vocabulary["Ċ"]
    assert b"<|im_end|>" not in bpe.ranks
    assert not bpe.nfc
    assert not bpe.complete  # it has no token for some control characters


def test_every_byte_has_its_character() -> None:
    characters = byte_characters()
    assert sorted(characters.values()) == list(range(256))
    assert characters["Ġ"] == 0x20
    assert characters["Ċ"] == 0x0A


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(*, use_regex: bool, add_prefix_space: bool = False) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


LLAMA_LIKE = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        byte_level(use_regex=True),
        sequence(byte_level(use_regex=True)),
        sequence({"type": "Digits", "individual_digits": False}, byte_level(use_regex=True)),
        sequence(split(LLAMA_LIKE), byte_level(use_regex=False)),
        sequence(split(LLAMA_LIKE, "Removed", True), byte_level(use_regex=False)),
    ],
)
def test_these_pre_tokenizers_have_one_pattern(declared: dict[str, Any], pre_tokenizer: dict[str, Any]) -> None:
    declared["pre_tokenizer"] = pre_tokenizer
    assert rebuild(declared).pattern


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        byte_level(use_regex=False),
        byte_level(use_regex=True, add_prefix_space=True),
        sequence(split(LLAMA_LIKE)),
        sequence(split(LLAMA_LIKE), byte_level(use_regex=True)),
        sequence(split(LLAMA_LIKE, "Removed"), byte_level(use_regex=False)),
        sequence(split(LLAMA_LIKE, "MergedWithNext"), byte_level(use_regex=False)),
        sequence(split(r"\p{N}{1,3}"), split(r"\p{L}+"), byte_level(use_regex=False)),
        sequence(split(r"^\p{L}+|\s+"), byte_level(use_regex=False)),  # Oniguruma's ^ matches after each line break
        sequence(split(r"\p{N}{1,3}+|\s+"), byte_level(use_regex=False)),  # possessive in one of the two only
        sequence(split(r"[\p{L}&&\p{Han}]+|\s+"), byte_level(use_regex=False)),
    ],
)
def test_these_have_none(declared: dict[str, Any], pre_tokenizer: dict[str, Any] | None) -> None:
    declared["pre_tokenizer"] = pre_tokenizer
    with pytest.raises(NotRebuildableError, match="pre-tokenizer"):
        rebuild(declared)


def set_in_model(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda declared: declared["model"].update(fields)


def swap_merges(declared: dict[str, Any]) -> None:
    merges = declared["model"]["merges"]
    merges[10], merges[20] = merges[20], merges[10]


def ignore_merges_beside_a_token_that_none_makes(declared: dict[str, Any]) -> None:
    declared["model"]["ignore_merges"] = True
    declared["model"]["vocab"]["unmade"] = len(declared["model"]["vocab"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda declared: declared.update(normalizer={"type": "NFKC"}), "normalizer is NFKC"),
        (lambda declared: declared.update(normalizer={"type": "Prepend", "prepend": "x"}), "normalizer is Prepend"),
        (set_in_model(type="Unigram"), "model is Unigram"),
        (set_in_model(byte_fallback=True), "byte_fallback"),
        (set_in_model(dropout=0.1), "dropout"),
        (set_in_model(continuing_subword_prefix="##"), "continuing_subword_prefix"),
        (swap_merges, "order of their ids"),
        (ignore_merges_beside_a_token_that_none_makes, "no merge makes"),
    ],
)
def test_what_ranks_cannot_express_is_refused(
    declared: dict[str, Any], change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    change(declared)
    with pytest.raises(NotRebuildableError, match=reason):
        rebuild(declared)


def test_a_token_that_merges_do_not_reach_is_found_out(declared: dict[str, Any]) -> None:
    """Ranks would make it of a whole piece."""
    merges = declared["model"]["merges"]
    place = next(place for place, merge in enumerate(merges) if "".join(merge) == "Ġthe")
    left, right = merges[place]
    assert (left, right) == ("Ġt", "he")
    merges[place] = ["Ġ", "the"]  # "he" is joined before, so that this never comes to pass
    with pytest.raises(NotRebuildableError, match="not what merges make"):
        rebuild(declared)


def test_normal_form_is_understood(declared: dict[str, Any]) -> None:
    declared["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}
    assert rebuild(declared).nfc
    declared["normalizer"] = {"type": "Sequence", "normalizers": []}
    assert not rebuild(declared).nfc


def test_merges_as_one_string_each_are_read(declared: dict[str, Any]) -> None:
    ranks = rebuild(declared).ranks
    declared["model"]["merges"] = [" ".join(merge) for merge in declared["model"]["merges"]]
    assert rebuild(declared).ranks == ranks
