"""Multimodal items of engine blocks as items of index blocks, which hash them into their keys.

Engines say for each of their blocks which items overlap it, at an offset relative to that block, and not how long an
item is. Where one engine block holds several index blocks, an item is therefore taken to reach its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from indexer.keys import Extra

Extras = dict[int, list[Extra]]
"""Number of an index block -> its items, by offset, then digest."""


def index_extras(
    extras: Sequence[Sequence[Extra]], before: Sequence[Extra], start: int, block_tokens: int, index_tokens: int
) -> tuple[Extras, list[list[Extra]]]:
    """Items of the index blocks that the engine blocks of a run overlap.

    The run begins `start` tokens after the beginning of index block 0, whose items so far are `before`. Also returns,
    for each engine block, the items of the index block that it ends in as far as they are known there.
    """
    found: dict[int, set[Extra]] = {0: set(before)} if before else {}
    tails: list[list[Extra]] = []
    for number, items in enumerate(extras):
        first_token = start + number * block_tokens
        last = (first_token + block_tokens - 1) // index_tokens
        for digest, offset in items:
            position = first_token + offset
            for block in range(max(first_token, position) // index_tokens, last + 1):
                found.setdefault(block, set()).add((digest, position - block * index_tokens))
        tails.append(_ordered(found.get(last, set())))
    return {block: _ordered(items) for block, items in found.items()}, tails


def _ordered(items: set[Extra]) -> list[Extra]:
    return sorted(items, key=lambda item: (item[1], item[0]))
