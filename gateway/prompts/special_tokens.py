"""Where a text may be cut: at the model's special tokens.

Special tokens are hard boundaries of a BPE tokenizer: the text between two of them tokenises independently of the
rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from indexer.keys import token_bytes


class SpecialTokens:
    """A model's added tokens, all of which are found wherever they stand in a text, the longest first."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids` must not be empty."""
        self.packed = {content: token_bytes([token_id]) for content, token_id in ids.items()}
        longest_first = sorted(ids, key=len, reverse=True)
        self._boundary = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self.split = self._boundary.split
        """Cuts a text: plain parts, maybe empty, at even places, special tokens at odd ones."""
        self.find = self._boundary.finditer
        self.self_contained = not any(
            inner in outer[:-1] for outer in longest_first for inner in longest_first if inner != outer
        )
        """Whether a text's boundaries up to the end of one stay where they are whatever follows. They do unless a
        special token holds another and goes on after it."""

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> SpecialTokens | None:
        """The added tokens of a parsed tokenizer.json; None where there are none or where they are no boundaries.

        One that is searched in normalised text, only as a whole word, or together with surrounding blanks makes the
        cut depend on more than the text between two of them.
        """
        tokens = declared.get("added_tokens") or []
        reaching = ["single_word", "lstrip", "rstrip"]
        if declared.get("normalizer") is not None:
            reaching.append("normalized")
        if any(token.get(name) for token in tokens for name in reaching):
            return None
        if _two_searches_differ(tokens):
            return None
        ids = {token["content"]: token["id"] for token in tokens if token.get("content")}
        return cls(ids) if ids else None


def _two_searches_differ(tokens: list[Mapping[str, Any]]) -> bool:
    """Whether it matters that `tokenizers` looks for tokens of unnormalised text first, for the others in the rest."""
    contents: dict[bool, list[str]] = {False: [], True: []}
    for token in tokens:
        contents[bool(token.get("normalized"))].append(token.get("content") or "")
    return any(_touch(one, other) for one in contents[False] for other in contents[True])


def _touch(one: str, other: str) -> bool:
    """Whether two strings can overlap in a text."""
    if one in other or other in one:
        return True
    return any(
        one.endswith(other[:length]) or other.endswith(one[:length]) for length in range(1, min(len(one), len(other)))
    )
