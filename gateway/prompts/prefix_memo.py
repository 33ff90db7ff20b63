"""Remembers the ids and keys of earlier prompts up to their last special token.

The next turn of a conversation begins with the text of the turn before, where the template only appends. Then one
comparison of memory replaces the tokenising and hashing of that text.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from gateway.prompts.bounded_memo import BoundedMemo
from gateway.prompts.special_tokens import SpecialTokens
from indexer.keys import TOKEN_BYTES, chain

ENTRY_BYTES: Final = 600  # an entry's objects, without text, ids and keys
KEY_BYTES: Final = 40  # an integer and the list's place for it
LEAST_BLOCK_TOKENS: Final = 16  # the smallest index block: it bounds the number of keys
ENDING_CHARACTERS: Final = 64
# A known prefix must end within the last so many characters of a text, and at most MOST_PLACES ends are tried. Most
# turns add less. Where a turn adds more, the prompt's segments are looked up one by one.
WINDOWS: Final = (8_192, 65_536)
MOST_PLACES: Final = 64


@dataclass(frozen=True, slots=True)
class Chained:
    """Keys of a prefix's full blocks under the root `seed`. `before`: packed ids in front of the prefix."""

    seed: int
    block_tokens: int
    before: bytes
    keys: list[int]


@dataclass(slots=True)
class Prefix:
    """The beginning of a prompt, up to a special token. `text` and `ids` (packed) never change."""

    text: str
    ids: bytes
    chained: Chained | None = None
    """The keys under the root used last. Replaced as a whole, so that other threads never see half of a change."""

    def keys(self, seed: int, block_tokens: int, before: bytes) -> list[int]:
        """Keys of its full blocks under the root `seed`, after the packed ids `before`."""
        chained = self.chained
        if chained is None or (chained.seed, chained.block_tokens, chained.before) != (seed, block_tokens, before):
            keys = chain(before + self.ids, seed, block_tokens=block_tokens)
            self.chained = chained = Chained(seed, block_tokens, before, keys)
        return chained.keys

    def extend(self, text: str, ids: bytes) -> Prefix:
        """This prefix with `text` and its packed `ids` added. Known keys are reused."""
        longer = Prefix(self.text + text, self.ids + ids)
        chained = self.chained
        if chained is not None:
            keys = continue_chain(chained.keys, chained.before + longer.ids, chained.seed, chained.block_tokens)
            longer.chained = Chained(chained.seed, chained.block_tokens, chained.before, keys)
        return longer


def continue_chain(keys: list[int], ids: bytes, seed: int, block_tokens: int) -> list[int]:
    """All keys of the packed `ids`; `keys` are those of its first blocks."""
    rest = chain(ids[len(keys) * block_tokens * TOKEN_BYTES :], keys[-1] if keys else seed, block_tokens=block_tokens)
    return keys + rest


class PrefixMemo:
    """Known prefixes by their length and their last characters. The least recently used are dropped first."""

    def __init__(self, special: SpecialTokens, limit_bytes: int) -> None:
        self._special = special
        self._prefixes: BoundedMemo[tuple[int, str], Prefix] = BoundedMemo(limit_bytes, _size)

    @property
    def size(self) -> int:
        """Bytes that it takes, estimated."""
        return self._prefixes.size

    def find(self, text: str) -> Prefix | None:
        """The longest known prefix of a text that ends in one of WINDOWS; None where there is none."""
        tried = 0
        searched_from = len(text)
        for window in WINDOWS:
            start = max(len(text) - window, 0)
            ends = [match.end() for match in self._special.find(text, start)]
            for end in reversed(ends):
                if end > searched_from:
                    continue
                prefix = self._prefixes.get(_name(text, end))
                if prefix is not None and text.startswith(prefix.text):
                    return prefix
                tried += 1
                if tried == MOST_PLACES:
                    return None
            if start == 0:
                break
            searched_from = start
        return None

    def put(self, prefix: Prefix, *, instead_of: Prefix | None = None) -> None:
        """Remember a prefix, and forget `instead_of`, which it extends: an earlier turn is seldom sent again."""
        if instead_of is not None:
            self._prefixes.discard(_name(instead_of.text, len(instead_of.text)))
        self._prefixes.put(_name(prefix.text, len(prefix.text)), prefix)


def _name(text: str, end: int) -> tuple[int, str]:
    return end, text[max(end - ENDING_CHARACTERS, 0) : end]


def _size(name: tuple[int, str], prefix: Prefix) -> int:
    most_keys = len(prefix.ids) // (LEAST_BLOCK_TOKENS * TOKEN_BYTES)
    return ENTRY_BYTES + sys.getsizeof(prefix.text) + len(prefix.ids) + most_keys * KEY_BYTES
