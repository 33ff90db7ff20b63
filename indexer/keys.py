"""The key space: how token ids become the 64-bit keys that name index blocks.

A key names an index block and everything before it. Worker and gateway compute keys with these functions, so the two
sides agree as long as their token ids and their pool fingerprint agree. A key is a routing hint, never an identity:
equal keys can be constructed, and nothing is served or credited because two keys are equal.

    root   = xxh3_64(msgpack([1, pool fingerprint, adapter, salt]))
    key[0] = xxh3_64(u32-LE token ids of block 0 + extras of block 0, seed=root)
    key[i] = xxh3_64(u32-LE token ids of block i + extras of block i, seed=key[i-1])

This module is a leaf: it imports nothing else of the project.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgpack
from xxhash import xxh3_64_intdigest

KEY_VERSION: Final = 1
TOKEN_BYTES: Final = 4

_TYPE_CODE: Final = "I" if array("I").itemsize == TOKEN_BYTES else "L"

Extra = tuple[bytes, int]
"""A multimodal item that overlaps a block: its digest, and its first position relative to the block's start (negative
when the item began in an earlier block)."""


def tokenizer_digest(tokenizer_json: bytes) -> str:
    """SHA-256 of `tokenizer.json` as lower-case hexadecimal: two workers with equal digests tokenise alike."""
    return hashlib.sha256(tokenizer_json).hexdigest()


def pool_fingerprint(*, index_block_tokens: int, base_model: str, tokenizer: str) -> str:
    """Name everything that both sides must agree on before their keys can be equal.

    `tokenizer` is `tokenizer_digest` of the model's file, or "" where the engine offers none. Returns 32 hexadecimal
    characters.
    """
    facts = msgpack.packb([KEY_VERSION, index_block_tokens, base_model, tokenizer])
    return hashlib.sha256(facts).hexdigest()[:32]


def root(fingerprint: str, *, adapter: str = "", salt: str = "") -> int:
    """The seed of a chain. Prompts under different roots share nothing.

    `adapter` is the LoRA adapter's name as served, "" for the base model; `salt` the request's `cache_salt`.
    """
    return xxh3_64_intdigest(msgpack.packb([KEY_VERSION, fingerprint, adapter, salt]))


def token_bytes(token_ids: Iterable[int]) -> bytes:
    """Token ids as unsigned 32-bit little-endian integers.

    Raises OverflowError for an id outside 0..2**32-1 and TypeError for anything that is not an integer.
    """
    packed = array(_TYPE_CODE, token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def chain(
    tokens: bytes, parent: int, *, block_tokens: int, extras: Mapping[int, Sequence[Extra]] | None = None
) -> list[int]:
    """Keys of all full index blocks in `tokens`, in order.

    `tokens` is the output of `token_bytes` and starts at a block boundary; `parent` is the key of the block before it,
    or the root. `extras` maps the number of a block within `tokens` to the items that overlap it. A trailing partial
    block has no key.
    """
    step = block_tokens * TOKEN_BYTES
    keys: list[int] = []
    append = keys.append
    key = parent
    for number, start in enumerate(range(0, len(tokens) - step + 1, step)):
        block = tokens[start : start + step]
        if extras and (items := extras.get(number)):
            block += msgpack.packb([[digest, offset] for digest, offset in items])
        key = xxh3_64_intdigest(block, key)
        append(key)
    return keys


def prompt_keys(
    token_ids: Iterable[int],
    fingerprint: str,
    *,
    block_tokens: int = 64,
    adapter: str = "",
    salt: str = "",
    extras: Mapping[int, Sequence[Extra]] | None = None,
) -> list[int]:
    """Keys of a whole prompt: `chain` from its root. `block_tokens`: the default is that of the settings."""
    seed = root(fingerprint, adapter=adapter, salt=salt)
    return chain(token_bytes(token_ids), seed, block_tokens=block_tokens, extras=extras)
