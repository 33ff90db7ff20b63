"""Segmented, remembered tokenisation equals the whole text's, whatever the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.prompts.tokenizer import PromptTokenizer, TokenizerError
from indexer.keys import token_bytes

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> PromptTokenizer:
    return PromptTokenizer.from_folder(smollm2)


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


texts = st.lists(st.sampled_from(SPECIAL) | st.text(max_size=20), max_size=8).map("".join)


@given(text=texts)
@settings(deadline=None)
def test_any_text_tokenises_as_a_whole(tokenizer: PromptTokenizer, reference: Tokenizer, text: str) -> None:
    expected = token_bytes(reference.encode(text, add_special_tokens=False).ids)
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode(text) == expected


def test_a_second_turn_tokenises_only_what_is_new(tokenizer: PromptTokenizer) -> None:
    assert tokenizer.segmented
    first = "<|im_start|>user\nA question that was asked before<|im_end|>\n"
    tokenizer.encode(first)
    assert tokenizer.new_characters(first) == 0
    assert tokenizer.new_characters(first + "<|im_start|>user\nanother") == len("user\nanother")


def test_the_memo_stays_within_its_bytes(smollm2: Path) -> None:
    tokenizer = PromptTokenizer((smollm2 / "tokenizer.json").read_bytes(), memo_bytes=10_000)
    for number in range(500):
        tokenizer.encode(f"<|im_start|>segment number {number} of many")
        assert tokenizer.memo_size <= 10_000
    tokenizer.encode("x " * 20_000)
    assert tokenizer.memo_size <= 10_000
    assert tokenizer.new_characters("<|im_start|>segment number 499 of many") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"lstrip": True},
        {"rstrip": True},
        {"single_word": True},
    ],
)
def test_special_tokens_that_reach_beyond_themselves_switch_segments_off(smollm2: Path, change: dict) -> None:
    declared = json.loads((smollm2 / "tokenizer.json").read_text())
    declared["added_tokens"][1].update(change)
    changed = json.dumps(declared)
    tokenizer = PromptTokenizer(changed.encode())
    text = "a <|im_start|> b<|im_end|>"
    assert not tokenizer.segmented
    assert tokenizer.encode(text) == token_bytes(Tokenizer.from_str(changed).encode(text, add_special_tokens=False).ids)


def test_a_tokenizer_whose_segments_depend_on_each_other_is_found_out(smollm2: Path) -> None:
    """One that puts a blank in front of the text's first word, as some SentencePiece conversions do."""
    declared = json.loads((smollm2 / "tokenizer.json").read_text())
    declared["normalizer"] = {"type": "Prepend", "prepend": "x"}
    changed = json.dumps(declared)
    text = "a<|im_start|>b<|im_end|>c"
    assert PromptTokenizer(changed.encode()).encode(text) == token_bytes(
        Tokenizer.from_str(changed).encode(text, add_special_tokens=False).ids
    )


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[1]"])
def test_files_that_are_no_tokenizer_are_refused(content: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not usable"):
        PromptTokenizer(content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: No such file"):
        PromptTokenizer.from_folder(tmp_path)
