"""Faster engines give the reference's ids, whatever the text, or are not used."""

from __future__ import annotations

import functools
import json
import logging
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.prompts import encoders, quick_encoder
from gateway.prompts.byte_level import ByteLevelBpe, rebuild
from gateway.prompts.encoders import Encoder, RankEncoder, ReferenceEncoder, characters_per_second, fastest_encoder
from gateway.prompts.proven_text import BLANK_WINDOW

# What hypothesis draws seldom: blanks in rows, digits, contractions, joiners, other planes, controls.
pieces = st.text(max_size=12) | st.sampled_from(
    [
        "  ",
        "\n\n",
        "\t",
        "\r\n",
        "\u00a0",
        "'s",
        "'LL",
        "1",
        "42",
        "²",
        "e\u0301",
        "\u200d",
        "🙂",
        "漢字",
        "x" * 40,
        "\x04",
    ]
)
texts = st.lists(pieces, max_size=12).map("".join)

FIXTURE_MODELS = ["smollm2", "qwen"]


class Engines:
    """One model's tokenizer in all forms."""

    def __init__(self, tokenizer_json: bytes) -> None:
        self.declared: dict[str, Any] = json.loads(tokenizer_json)
        self.reference = ReferenceEncoder(Tokenizer.from_str(tokenizer_json.decode()))
        self.bpe: ByteLevelBpe = rebuild(self.declared)
        tiktoken = encoders._tiktoken(self.bpe, self.declared)
        assert tiktoken is not None
        self.all: dict[str, Encoder] = {"tiktoken": self.by_rank("tiktoken", tiktoken)}
        quicktok = quick_encoder.build(self.bpe, self.declared)
        if quicktok is not None:
            self.all["quicktok"] = self.by_rank("quicktok", quicktok)

    def by_rank(self, name: str, engine: Callable[[str], list[int]]) -> RankEncoder:
        return RankEncoder(name, engine, self.reference, bpe=self.bpe)

    def check(self, text: str) -> None:
        expected = self.reference.encode(text)
        for name, encoder in self.all.items():
            assert encoder.encode(text) == expected, name


engines_of = functools.lru_cache(maxsize=len(FIXTURE_MODELS))(Engines)
"""Made once in a process: the larger takes ten seconds."""


@pytest.fixture(scope="module", params=FIXTURE_MODELS)
def engines(request: pytest.FixtureRequest) -> Engines:
    return engines_of(request.getfixturevalue(f"{request.param}_json"))


@given(text=texts)
@settings(max_examples=300)
def test_any_text_has_the_references_ids(engines: Engines, text: str) -> None:
    engines.check(text)


@pytest.mark.parametrize("one", ["a", " ", "\n", " \n", "-", "漢", "1", "\t", "\u3000", "ab", "🙂"])
@pytest.mark.parametrize("characters", [3_000, 2 * BLANK_WINDOW - 1, 1_000_000])
def test_one_thing_repeated_has_them_too(engines: Engines, one: str, characters: int) -> None:
    engines.check(one * (characters // len(one)) + "x")


def test_every_assigned_character_has_them(engines: Engines) -> None:
    """In the places where classes of characters matter: in a word, alone, beside digits and in a contraction."""
    characters = [
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character) not in {"Cn", "Cs", "Co"} and not 0xAC00 < ord(character) < 0xD7A3
    ]
    size = 40
    for start in range(0, len(characters), size):
        engines.check("".join(f"a{c}b {c}{c} 1{c}'s{c}\n " for c in characters[start : start + size]))


def test_a_character_that_no_table_knows_goes_to_the_reference(engines: Engines) -> None:
    """Digits of Unicode 17, which one engine of two takes for digits."""
    engines.check("a\U00011de0\U00011de1 b 1\U00016ff4")


def test_half_surrogates_are_refused_alike(engines: Engines) -> None:
    for encoder in (engines.reference, *engines.all.values()):
        with pytest.raises((UnicodeEncodeError, TypeError)):
            encoder.encode("a\ud800")


def test_bytes_that_the_vocabulary_lacks_go_to_the_reference(smollm2_json: bytes) -> None:
    engines = Engines(smollm2_json)
    assert not engines.bpe.complete
    engines.check("a\x04b\x06\U00050000c")


def test_text_that_is_no_normal_form_goes_to_the_reference(smollm2_json: bytes) -> None:
    declared = json.loads(smollm2_json)
    declared["normalizer"] = {"type": "NFC"}
    engines = Engines(json.dumps(declared).encode())
    for text in ("plain", "é", "e\u0301", "가", "a\u0323\u0307", "\u212b"):
        engines.check(text)
    assert engines.reference.encode("e\u0301") == engines.reference.encode("é")


def test_the_fastest_that_is_proven_is_chosen(engines: Engines) -> None:
    encoder = fastest_encoder(engines.declared, engines.reference)
    assert encoder.name == ("quicktok" if "quicktok" in engines.all else "tiktoken")
    assert characters_per_second(encoder) > characters_per_second(engines.reference)


def test_quicktok_takes_the_patterns_that_it_has_scanners_for(request: pytest.FixtureRequest) -> None:
    assert "quicktok" in engines_of(request.getfixturevalue("qwen_json")).all
    assert "quicktok" not in engines_of(request.getfixturevalue("smollm2_json")).all


def test_what_cannot_be_rebuilt_keeps_the_reference(smollm2_json: bytes, caplog: pytest.LogCaptureFixture) -> None:
    declared = json.loads(smollm2_json)
    declared["normalizer"] = {"type": "Lowercase"}
    reference = ReferenceEncoder(Tokenizer.from_str(json.dumps(declared)))
    with caplog.at_level(logging.INFO):
        assert fastest_encoder(declared, reference) is reference
    assert "normalizer is Lowercase" in caplog.text


def test_an_engine_with_other_ids_is_found_out(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose pattern differs in what a blank before digits belongs to."""
    wrong = ByteLevelBpe(engines.bpe.ranks, r" ?\p{N}+|" + engines.bpe.pattern, engines.bpe.nfc)
    monkeypatch.setattr(encoders, "rebuild", lambda _: wrong)
    monkeypatch.setattr(quick_encoder, "build", lambda *_: None)
    assert fastest_encoder(engines.declared, engines.reference) is engines.reference
    assert "tiktoken gives other ids" in caplog.text
