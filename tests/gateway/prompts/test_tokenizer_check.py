"""Which patterns and sizes of tokenizers are taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.prompts.tokenizer_check import RefusedTokenizerError, check_pattern, check_tokenizer

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA4 = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"


@pytest.mark.parametrize("pattern", [QWEN, LLAMA4, " {2,}", r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", r"?+\p{L}++"[2:]])
def test_patterns_of_models_are_taken(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a*)*", "(a|aa)+$", "(a+){20}", "a*a*a*a*a*b", "(?:a?)+x", "(", "(" * 5_000, "x" * 20_000]
)
def test_patterns_that_go_back_and_back_are_refused(pattern: str) -> None:
    with pytest.raises(RefusedTokenizerError):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "contents", [b"", b"[]", b"{}", b"[" * 100_000, b'{"model": {"vocab": [%b0]}}' % (b"0," * 2_000_000)]
)
def test_sizes_that_no_model_has_are_refused(contents: bytes) -> None:
    with pytest.raises(RefusedTokenizerError):
        check_tokenizer(contents)


def test_the_built_in_models_is_taken(smollm2: Path) -> None:
    contents = (smollm2 / "tokenizer.json").read_bytes()
    check_tokenizer(contents)
    declared = json.loads(contents)
    declared["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(x+)+"}, "content": ""}
    with pytest.raises(RefusedTokenizerError, match="within"):
        check_tokenizer(json.dumps(declared).encode())
