from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.hashing import block_hash, root_hash

NAMES = st.text(max_size=5)


def test_a_block_hash_is_what_the_docstring_says() -> None:
    parent = root_hash()
    tokens = [1, 258, 2**32 - 1]
    expected = hashlib.sha256(parent + bytes.fromhex("01000000 02010000 ffffffff")).digest()
    assert block_hash(parent, tokens) == expected


@given(NAMES, NAMES, NAMES, NAMES)
def test_roots_differ_whenever_salt_or_adapter_does(salt: str, adapter: str, salt2: str, adapter2: str) -> None:
    same = (salt, adapter) == (salt2, adapter2)
    assert (root_hash(salt=salt, adapter=adapter) == root_hash(salt=salt2, adapter=adapter2)) == same


def test_one_token_repeated_gives_distinct_blocks() -> None:
    hashes = [root_hash()]
    for _ in range(100):
        hashes.append(block_hash(hashes[-1], [5] * 16))
    assert len(set(hashes)) == 101
