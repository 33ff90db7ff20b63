"""Rebuilds a byte-level BPE tokenizer as ranks and one pattern, the form that tiktoken takes.

`tokenizer.json` lists merges, pairs of tokens in order of priority. tiktoken has ranks of tokens: it joins the two
neighbours whose joint bytes have the lowest rank. Both give the same ids where

- the merges are in the order of their results' ids, so that both priorities are the same, and
- the reference tokenizes the bytes of each merged token to that one token.

Then, whenever two neighbours have the bytes of a token and no join of a lower rank is left inside them, the merge of
those two is in the list: bytes inside a piece are joined as they are joined alone, and alone they give that token. So
both methods choose the same join at every step. A tokenizer.json with anything that this module does not know is
refused with NotRebuildableError; nothing is approximated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from tokenizers import Tokenizer, models

MISSING_BYTE_ID: Final = 0xFFFFFF00
"""Ids from here on stand for bytes that the vocabulary lacks. No vocabulary has ids this large."""

# GPT-2's pattern, which a ByteLevel pre-tokenizer applies by itself.
_LETTERS_ON: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+"
_OTHERS: Final = r" ?[^\s\p{L}\p{N}]+"
_GPT2: Final = rf"{_LETTERS_ON}| ?\p{{N}}+|{_OTHERS}|\s+(?!\S)|\s+"
# The same after a Digits pre-tokenizer: a number is a separate piece, so blanks before it end their piece.
_BESIDE_DIGITS: Final = rf"{_LETTERS_ON}|{_OTHERS}|\s+(?![^\s\p{{N}}])|\s+"

# Syntax with the same meaning in Oniguruma, which `tokenizers` uses, and in tiktoken's Rust regex engines.
_SHARED_SYNTAX: Final = re.compile(
    r"""(?: \\p\{(?:L[ultmo]?|M|N)\} | \\[sSrn] | \(\?i: | \(\?: | \(\?[!=] | [()|] | \[\^? | \]
        | \{[0-9]+(?:,[0-9]*)?\}(?!\+) | [?*+] | [A-Za-z'/ ] )*""",
    re.VERBOSE,
)


class NotRebuildableError(ValueError):
    """The tokenizer does something that ranks and one pattern cannot express; the message says what."""


@dataclass(frozen=True, slots=True)
class ByteLevelBpe:
    """A tokenizer by ranks. `ranks` maps a token's bytes to its id; `pattern` cuts a text into pieces."""

    ranks: Mapping[bytes, int]
    pattern: str
    nfc: bool
    """Whether texts are normalised to Unicode NFC first."""

    @property
    def complete(self) -> bool:
        """Whether the vocabulary has every byte."""
        return max(self.ranks.values()) < MISSING_BYTE_ID


def rebuild(declared: Mapping[str, Any]) -> ByteLevelBpe:
    """`declared`: a parsed tokenizer.json. Raises NotRebuildableError."""
    normalizers = list(_steps(declared.get("normalizer"), "normalizers"))
    if any(step.get("type") != "NFC" for step in normalizers):
        raise NotRebuildableError(f"its normalizer is {_types(normalizers)}")
    pattern = _pattern(declared.get("pre_tokenizer"))
    return ByteLevelBpe(_ranks(declared), pattern, bool(normalizers))


def _steps(value: object, parts: str) -> Iterator[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer as a flat list of its steps."""
    if isinstance(value, Mapping):
        if value.get("type") == "Sequence":
            for part in value.get(parts) or []:
                yield from _steps(part, parts)
        else:
            yield value


def _types(steps: list[Mapping[str, Any]]) -> str:
    return " + ".join(str(step.get("type")) for step in steps) or "missing"


def _pattern(pre_tokenizer: object) -> str:
    """The one pattern that cuts texts as the pre-tokenizers do."""
    steps = list(_steps(pre_tokenizer, "pretokenizers"))
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        raise NotRebuildableError(f"its pre-tokenizer is {_types(steps)}")
    use_regex = steps[-1].get("use_regex", True)
    match steps[:-1]:
        case [] if use_regex:
            return _GPT2
        case [{"type": "Digits", "individual_digits": bool(single)}] if use_regex:
            return rf"\p{{N}}{'' if single else '+'}|{_BESIDE_DIGITS}"
        case [{"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": behavior} as split] if not use_regex:
            # Both keep each match as a piece. Text that the pattern does not match would fail the probes.
            keeps_matches = (behavior, bool(split.get("invert"))) in {("Isolated", False), ("Removed", True)}
            if keeps_matches and _SHARED_SYNTAX.fullmatch(pattern):
                return pattern
    raise NotRebuildableError(f"its pre-tokenizer is {_types(steps)} of an unknown kind")


def _ranks(declared: Mapping[str, Any]) -> dict[bytes, int]:
    model = declared.get("model") or {}
    unknown = [
        name
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
        if model.get(name)
    ]
    if model.get("type") != "BPE" or unknown:
        raise NotRebuildableError(f"its model is {model.get('type')} with {', '.join(unknown) or 'nothing else'}")
    vocabulary: dict[str, int] = model["vocab"]
    merges = [_pair(merge) for merge in model["merges"]]
    results = ["".join(merge) for merge in merges]
    ids = [vocabulary[result] for result in results]
    if any(earlier > later for earlier, later in pairwise(ids)):
        raise NotRebuildableError("its merges are not in the order of their ids")
    made = dict(zip(results, ids, strict=True))
    _require_reachable(list(made), vocabulary, merges)
    characters = byte_characters()
    if model.get("ignore_merges"):
        # Whole pieces are looked up first. A special token is never a piece: texts are cut at special tokens before.
        special = {token.get("content") for token in declared.get("added_tokens") or []}
        if any(token not in made and token not in characters and token not in special for token in vocabulary):
            raise NotRebuildableError("it has tokens that no merge makes")
    ranks = {bytes(map(characters.__getitem__, token)): token_id for token, token_id in made.items()}
    for character, byte in characters.items():
        ranks[bytes([byte])] = vocabulary.get(character, MISSING_BYTE_ID + byte)
    return ranks


def _pair(merge: str | list[str]) -> tuple[str, str]:
    """A merge's two tokens. Some files write them as one string with a blank between."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _require_reachable(made: list[str], vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Raises NotRebuildableError unless the reference tokenizes each merged token's text to that one token."""
    alone = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    lost = sum(len(encoding) != 1 for encoding in alone.encode_batch_fast(made, add_special_tokens=False))
    if lost:
        raise NotRebuildableError(f"{lost} of its tokens are not what merges make of their bytes")


def byte_characters() -> dict[str, int]:
    """The byte of each character in byte-level vocabularies: printable Latin-1 stands for itself, the others are
    numbered from U+0100 on. Source: GPT-2's `bytes_to_unicode`."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
