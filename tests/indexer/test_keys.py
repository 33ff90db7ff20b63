"""Keys: the checked-in vectors, and the properties that both sides rest on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.keys import chain, pool_fingerprint, prompt_keys, root, token_bytes, tokenizer_digest
from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS

VECTORS = json.loads((Path(__file__).parent.parent / "fixtures/key_vectors.json").read_text())
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=300)


@pytest.mark.parametrize("vector", VECTORS["fingerprints"], ids=lambda vector: vector["base_model"])
def test_fingerprint_vectors(vector: dict) -> None:
    expected = vector.pop("fingerprint")
    assert pool_fingerprint(**vector) == expected


@pytest.mark.parametrize("vector", VECTORS["chains"], ids=lambda vector: vector["name"])
def test_chain_vectors(vector: dict) -> None:
    extras = {int(block): [(bytes.fromhex(d), o) for d, o in items] for block, items in vector["extras"].items()}
    keys = prompt_keys(
        vector["token_ids"],
        vector["fingerprint"],
        block_tokens=vector["block_tokens"],
        adapter=vector["adapter"],
        salt=vector["salt"],
        extras=extras,
    )
    assert [f"{key:016x}" for key in keys] == vector["keys"]


def test_a_prompt_shorter_than_a_block_has_no_key() -> None:
    assert prompt_keys(range(63), "f") == []
    assert len(prompt_keys(range(64), "f")) == 1
    assert len(prompt_keys(range(128), "f")) == 2


def test_one_token_repeated_gives_distinct_keys() -> None:
    keys = prompt_keys([7] * 640, "f")
    assert len(set(keys)) == 10


def test_roots_differ_by_fingerprint_adapter_and_salt() -> None:
    roots = [root("f"), root("g"), root("f", adapter="a"), root("f", salt="a"), root("f", adapter="a", salt="a")]
    assert len(set(roots)) == 5


def test_names_with_odd_characters_are_only_bytes() -> None:
    assert len({root("f", adapter=name) for name in ("a@b", "a/b", "a:b", "a b", "ä")}) == 5


def test_extras_change_their_block_and_what_follows() -> None:
    tokens = token_bytes(range(192))
    plain = chain(tokens, 1, block_tokens=64)
    image = chain(tokens, 1, block_tokens=64, extras={1: [(b"digest", 5)]})
    moved = chain(tokens, 1, block_tokens=64, extras={1: [(b"digest", 6)]})
    assert plain[0] == image[0]
    assert set(plain[1:]).isdisjoint(image[1:])
    assert set(moved[1:]).isdisjoint(image[1:])


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_token_ids_out_of_range_are_refused(bad: int) -> None:
    with pytest.raises(OverflowError):
        token_bytes([bad])


def test_digest_is_sha256() -> None:
    assert tokenizer_digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@given(tokens=TOKENS, more=TOKENS, block=st.sampled_from([16, 32, 64]))
def test_a_prefix_has_a_prefix_of_the_keys(tokens: list[int], more: list[int], block: int) -> None:
    short, long = prompt_keys(tokens, "f", block_tokens=block), prompt_keys(tokens + more, "f", block_tokens=block)
    assert long[: len(short)] == short
    assert len(short) == len(tokens) // block


@given(tokens=TOKENS, split=st.integers(0, 20))
def test_a_chain_can_be_continued_at_any_block(tokens: list[int], split: int) -> None:
    packed = token_bytes(tokens)
    whole = chain(packed, 9, block_tokens=16)
    head = chain(packed[: split * 64], 9, block_tokens=16)
    tail = chain(packed[split * 64 :], head[-1] if head else 9, block_tokens=16)
    assert head + tail == whole


def test_the_default_block_is_the_settings() -> None:
    assert prompt_keys.__kwdefaults__["block_tokens"] == DEFAULT_INDEX_BLOCK_TOKENS
