"""Known beginnings of prompts: found where they are one, with the keys that the whole would have."""

from __future__ import annotations

import pytest

from gateway.prompts.prefix_memo import MOST_PLACES, WINDOWS, Prefix, PrefixMemo, continue_chain
from gateway.prompts.special_tokens import SpecialTokens
from indexer.keys import chain, token_bytes

END = "<|end|>"
BLOCK = 16


@pytest.fixture
def memo() -> PrefixMemo:
    return PrefixMemo(SpecialTokens({END: 1, "<|start|>": 2}), 1_000_000)


def ids(count: int) -> bytes:
    return token_bytes(range(count))


def known(memo: PrefixMemo, text: str) -> Prefix:
    prefix = Prefix(text, ids(100))
    memo.put(prefix)
    return prefix


def test_a_longer_prompt_finds_its_beginning(memo: PrefixMemo) -> None:
    prefix = known(memo, "one" + END)
    assert memo.find("one" + END + "two" + END + "three") is prefix
    assert memo.find("one" + END) is prefix


def test_the_longest_beginning_is_found(memo: PrefixMemo) -> None:
    known(memo, "one" + END)
    longer = known(memo, "one" + END + "two" + END)
    assert memo.find("one" + END + "two" + END + "three" + END) is longer


def test_another_text_with_the_same_last_characters_is_none(memo: PrefixMemo) -> None:
    alike = "x" * 200 + END
    known(memo, "a" + alike)
    assert memo.find("b" + alike + "more") is None
    assert memo.find("a" + alike[:-1]) is None


@pytest.mark.parametrize("added", [10, WINDOWS[0] + 10, WINDOWS[1] - 10])
def test_it_is_found_before_a_long_turn(memo: PrefixMemo, added: int) -> None:
    prefix = known(memo, "one" + END)
    assert memo.find("one" + END + "x" * added) is prefix


def test_it_is_looked_for_at_a_bounded_number_of_places(memo: PrefixMemo) -> None:
    prefix = known(memo, "one" + END)
    assert memo.find("one" + END + END * (MOST_PLACES - 1)) is prefix
    assert memo.find("one" + END + END * MOST_PLACES) is None
    assert memo.find("one" + END + "x" * WINDOWS[1]) is None


def test_what_goes_on_takes_the_place_of_what_it_goes_on_from(memo: PrefixMemo) -> None:
    first = known(memo, "one" + END)
    memo.put(first.extend("two" + END, ids(10)), instead_of=first)
    assert memo.find("one" + END + "other") is None
    assert memo.find("one" + END + "two" + END + "other") is not None


def test_the_memo_stays_within_its_bytes() -> None:
    memo = PrefixMemo(SpecialTokens({END: 1}), 20_000)
    for number in range(100):
        memo.put(Prefix(f"{number} {'x' * 500}{END}", ids(200)))
        assert memo.size <= 20_000
    assert memo.find(f"99 {'x' * 500}{END}") is not None
    assert memo.find(f"0 {'x' * 500}{END}") is None


@pytest.mark.parametrize("before", [b"", ids(1)])
def test_keys_are_those_of_the_whole(before: bytes) -> None:
    prefix = Prefix("text", ids(100))
    for seed, block_tokens in ((1, BLOCK), (2, BLOCK), (2, 64), (1, BLOCK)):
        expected = chain(before + prefix.ids, seed, block_tokens=block_tokens)
        assert prefix.keys(seed, block_tokens, before) == expected
        assert prefix.keys(seed, block_tokens, before) is prefix.keys(seed, block_tokens, before)


@pytest.mark.parametrize("added", [0, 1, 27, 28, 29, 500])
def test_an_extension_goes_on_with_the_keys(added: int) -> None:
    prefix = Prefix("a", ids(100))
    prefix.keys(7, BLOCK, b"")
    longer = prefix.extend("b", ids(added))
    assert longer.chained is not None
    assert longer.chained.keys == chain(ids(100) + ids(added), 7, block_tokens=BLOCK)
    assert prefix.keys(7, BLOCK, b"") == chain(ids(100), 7, block_tokens=BLOCK)


@pytest.mark.parametrize("count", [0, 1, 16, 40])
def test_a_chain_goes_on_from_any_place(count: int) -> None:
    whole = chain(ids(640), 3, block_tokens=BLOCK)
    assert continue_chain(whole[:count], ids(640), 3, BLOCK) == whole
