"""Prompts seen before, up to their last special token: their ids and keys.

The next turn of a conversation begins with the text of the one before, when the template only appends. Then neither
the old part's segments nor its blocks are looked at again: one comparison of memory finds that they are known.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from gateway.prompts.bounded_memo import BoundedMemo
from gateway.prompts.special_tokens import SpecialTokens
from indexer.keys import TOKEN_BYTES, chain

ENTRY_BYTES: Final = 600  # of an entry's objects, beside text, ids and keys
KEY_BYTES: Final = 40  # an integer and the list's place for it
LEAST_BLOCK_TOKENS: Final = 16  # of index blocks, to say how many keys an entry can have
ENDING_CHARACTERS: Final = 64
# Where ends of a known prefix are looked for: in the last so many characters of a text, at no more places than this.
# What a turn adds is mostly shorter; where it is not, the prompt's segments are looked up one by one.
WINDOWS: Final = (8_192, 65_536)
MOST_PLACES: Final = 64


@dataclass(frozen=True, slots=True)
class Chained:
    """Keys of a prefix's full blocks under one root, with `before` (packed ids) in front of it."""

    seed: int
    block_tokens: int
    before: bytes
    keys: list[int]


@dataclass(slots=True)
class Prefix:
    """The beginning of a prompt, which ends with a special token. `text` and `ids` never change."""

    text: str
    ids: bytes
    chained: Chained | None = None
    """The keys under the root that asked last. Replaced as a whole, so that threads see one or the other."""

    def keys(self, seed: int, block_tokens: int, before: bytes) -> list[int]:
        """Keys of its full blocks."""
        chained = self.chained
        if chained is None or (chained.seed, chained.block_tokens, chained.before) != (seed, block_tokens, before):
            keys = chain(before + self.ids, seed, block_tokens=block_tokens)
            self.chained = chained = Chained(seed, block_tokens, before, keys)
        return chained.keys

    def extend(self, text: str, ids: bytes) -> Prefix:
        """A longer prefix, whose keys go on where this one's end."""
        longer = Prefix(self.text + text, self.ids + ids)
        chained = self.chained
        if chained is not None:
            keys = continue_chain(chained.keys, chained.before + longer.ids, chained.seed, chained.block_tokens)
            longer.chained = Chained(chained.seed, chained.block_tokens, chained.before, keys)
        return longer


def continue_chain(keys: list[int], ids: bytes, seed: int, block_tokens: int) -> list[int]:
    """The keys of `ids`, of whose first blocks `keys` are known."""
    rest = chain(ids[len(keys) * block_tokens * TOKEN_BYTES :], keys[-1] if keys else seed, block_tokens=block_tokens)
    return keys + rest


class PrefixMemo:
    """Known prefixes by their length and their last characters; the least recently used leave first."""

    def __init__(self, special: SpecialTokens, limit_bytes: int) -> None:
        self._special = special
        self._prefixes: BoundedMemo[tuple[int, str], Prefix] = BoundedMemo(limit_bytes, _size)

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return self._prefixes.size

    def find(self, text: str) -> Prefix | None:
        """The longest known prefix of a text that ends in one of the windows."""
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
        """Remember a prefix. The shorter one that it goes on from is seldom asked for again: its place is worth more
        than a second conversation that begins alike, whose segments are known in any case."""
        if instead_of is not None:
            self._prefixes.discard(_name(instead_of.text, len(instead_of.text)))
        self._prefixes.put(_name(prefix.text, len(prefix.text)), prefix)


def _name(text: str, end: int) -> tuple[int, str]:
    return end, text[max(end - ENDING_CHARACTERS, 0) : end]


def _size(name: tuple[int, str], prefix: Prefix) -> int:
    most_keys = len(prefix.ids) // (LEAST_BLOCK_TOKENS * TOKEN_BYTES)
    return ENTRY_BYTES + sys.getsizeof(prefix.text) + len(prefix.ids) + most_keys * KEY_BYTES
