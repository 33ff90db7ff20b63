"""Where a text may be cut: at the model's special tokens.

Special tokens are hard boundaries of a BPE tokenizer: the text between two of them tokenises independently of the
rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from os.path import commonprefix
from typing import Any, Final

from indexer.keys import token_bytes

STRETCH: Final = 32_768
# Gemma has 6,000 added tokens; the longest in use have some 50 characters.
MOST_TOKENS: Final = 20_000
MOST_CHARACTERS: Final = 100


class SpecialTokens:
    """A model's added tokens. At each place of a text the longest one is found."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids` must not be empty."""
        self.packed = {content: token_bytes([token_id]) for content, token_id in ids.items()}
        self._boundary = re.compile(f"({_any_of(sorted(ids))})")
        self._longest = max(map(len, ids))
        self.find = self._boundary.finditer
        self.self_contained = not any(part in ids for outer in ids for part in _parts(outer[:-1]))
        """Whether text after a special token never changes the boundaries before it. False where one special token
        contains another and continues after it."""

    def split(self, text: str) -> list[str]:
        """Cut a text. Plain parts, which may be empty, are at even places, special tokens at odd ones."""
        if len(text) <= STRETCH:
            return self._boundary.split(text)
        # In stretches: one search holds the GIL to its end, for 80 ms where 8 MB contain no special token.
        parts: list[str] = []
        end = 0
        for start in range(0, len(text), STRETCH):
            stop = start + STRETCH
            for match in self._boundary.finditer(text, max(start, end), stop + self._longest):
                if match.start() >= stop:
                    break
                parts += text[end : match.start()], match.group()
                end = match.end()
        parts.append(text[end:])
        return parts

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> SpecialTokens | None:
        """The added tokens of a parsed tokenizer.json. None where there are none, where they are not boundaries, and
        above MOST_TOKENS or MOST_CHARACTERS.

        A token that is searched in normalised text, only as a whole word, or with the blanks around it is no boundary:
        its match depends on the text outside of it.
        """
        tokens = declared.get("added_tokens") or []
        reaching = ["single_word", "lstrip", "rstrip"]
        if declared.get("normalizer") is not None:
            reaching.append("normalized")
        if any(token.get(name) for token in tokens for name in reaching):
            return None
        ids = {token["content"]: token["id"] for token in tokens if token.get("content")}
        if len(ids) > MOST_TOKENS or any(len(content) > MOST_CHARACTERS for content in ids):
            return None
        if _two_searches_differ(tokens):
            return None
        return cls(ids) if ids else None


def _two_searches_differ(tokens: list[Mapping[str, Any]]) -> bool:
    """Whether two searches find other tokens than one: `tokenizers` searches those of unnormalised text first."""
    first = {token["content"] for token in tokens if token.get("content") and not token.get("normalized")}
    others = {token["content"] for token in tokens if token.get("content") and token.get("normalized")}
    return _can_touch(first, others) or _can_touch(others, first)


def _can_touch(ones: set[str], others: set[str]) -> bool:
    """Whether a token of the first set can overlap one of the second in a text."""
    starts = {one[:length] for one in ones for length in range(1, len(one) + 1)}
    ends = {other[place:] for other in others for place in range(len(other))}
    return not starts.isdisjoint(ends) or any(part in ones for other in others for part in _parts(other))


def _parts(text: str) -> Iterator[str]:
    """All substrings that are not empty."""
    return (text[start:end] for start in range(len(text)) for end in range(start + 1, len(text) + 1))


def _any_of(words: Sequence[str]) -> str:
    """A pattern that finds the longest of some words, which must be sorted.

    Words with a common beginning share its part of the pattern: at each place of a text a search tries a few
    characters, not thousands of words.
    """
    head = commonprefix((words[0], words[-1]))  # noqa: RUF071  of characters: these are no paths
    rests = [word[len(head) :] for word in words]
    ends_here = not rests[0]
    branches = [_any_of(list(group)) for _, group in groupby(filter(None, rests), key=itemgetter(0))]
    if not branches:
        return re.escape(head)
    return f"{re.escape(head)}(?:{'|'.join(branches)}){'?' if ends_here else ''}"
