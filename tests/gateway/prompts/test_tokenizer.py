"""Segmented, remembered tokenisation equals the whole text's, whatever the text."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from gateway.prompts.body import BodyKind, Unkeyed, parse_body
from gateway.prompts.byte_level import byte_characters
from gateway.prompts.keyer import KeySpace, PromptKeyer
from gateway.prompts.tokenizer import (
    ENTRY_BYTES,
    LEAST_INLINE_CHARACTERS,
    MOST_INLINE_CHARACTERS,
    PromptTokenizer,
    TokenizerError,
)
from indexer.keys import chain, token_bytes
from warmroute.process.native import PanicError

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
SEED = 12345


class Model:
    """One tokenizer, and the library's own."""

    def __init__(self, tokenizer_json: bytes) -> None:
        self.ours = PromptTokenizer(tokenizer_json)
        self.reference = Tokenizer.from_str(tokenizer_json.decode())

    def ids(self, text: str) -> bytes:
        return token_bytes(self.reference.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module", params=["smollm2", "qwen"])
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.getfixturevalue(f"{request.param}_json"))


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> PromptTokenizer:
    return PromptTokenizer.from_folder(smollm2)


parts = st.sampled_from([*SPECIAL, "<|im_", "end|>", "\n", " ", "e\u0301", "1"]) | st.text(max_size=20)
texts = st.lists(parts, max_size=8).map("".join)


@given(text=texts)
def test_any_text_tokenises_as_a_whole(model: Model, text: str) -> None:
    expected = model.ids(text)
    assert model.ours.encode(text) == expected
    assert model.ours.encode(text) == expected
    assert model.ours.encode(text, add_special_tokens=True) == expected  # these models put none around a text


@given(start=texts, turns=st.lists(texts, max_size=4), salted=st.booleans())
def test_any_conversation_has_the_keys_of_the_whole(model: Model, start: str, turns: list[str], salted: bool) -> None:
    """Each turn goes on from the text before, wherever that ends, and is asked for again under another root."""
    text = "a long beginning " * 80 + "<|im_start|>" + start
    for turn in ["", *turns]:
        text += turn
        expected = model.ids(text)
        prepared = model.ours.prepare(text)
        assert prepared.encode() == expected
        for seed in (SEED, SEED + salted, SEED):
            assert prepared.keys(seed, 16) == chain(expected, seed, block_tokens=16)
        assert model.ours.new_characters(text) == 0


def test_a_second_turn_tokenises_only_what_is_new(tokenizer: PromptTokenizer) -> None:
    assert len(tokenizer.segments("a<|im_start|>b")) == 3
    first = "<|im_start|>user\nA question that was asked before<|im_end|>\n"
    tokenizer.encode(first)
    assert tokenizer.new_characters(first) == 0
    assert tokenizer.new_characters(first + "<|im_start|>user\nanother") == len("user\nanother")


def test_a_second_turn_looks_up_only_what_is_new(smollm2: Path) -> None:
    tokenizer = PromptTokenizer.from_folder(smollm2)
    old = "".join(f"<|im_start|>user\nquestion {number} of many<|im_end|>\n" for number in range(100))
    tokenizer.encode(old + "<|im_start|>assistant\n")
    tokenizer._segments.clear()
    assert tokenizer.new_characters(old + "<|im_start|>assistant\nanswer") == len("assistant\nanswer")


def test_the_memos_stay_within_their_bytes(smollm2: Path) -> None:
    limit = 20_000
    tokenizer = PromptTokenizer((smollm2 / "tokenizer.json").read_bytes(), memo_bytes=limit)
    taken: dict[str, int] = {}

    def remembered() -> int:
        """Bytes of the texts that need not be tokenised again."""
        return sum(size for text, size in taken.items() if tokenizer.new_characters(text) == 0)

    for number in range(500):
        text = f"<|im_start|>segment number {number} of many" + " and more" * 150 + "<|im_end|>"
        taken[text] = ENTRY_BYTES + len(text) + len(tokenizer.encode(text))
        if number % 25 == 0:
            assert 0 < remembered() <= 2 * limit
    long = "x " * 20_000 + "<|im_end|>"
    taken[long] = ENTRY_BYTES + len(long) + len(tokenizer.encode(long))
    assert 0 < remembered() <= 2 * limit
    assert tokenizer.new_characters("<|im_start|>segment number 499 of many" + " and more" * 150) == 0


def test_threads_share_a_tokenizer(smollm2: Path) -> None:
    model = Model((smollm2 / "tokenizer.json").read_bytes())
    chats = ["".join(f"<|im_start|>user\n{word} {turn}<|im_end|>\n" for turn in range(60)) for word in "abcdefgh"]
    expected = {chat[:end]: model.ids(chat[:end]) for chat in chats for end in range(len(chat) // 2, len(chat), 100)}
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(model.ours.encode, expected)) == list(expected.values())


def test_a_text_is_shown_in_its_segments(tokenizer: PromptTokenizer) -> None:
    text = "<|im_start|>user\nHello there<|im_end|>"
    segments = tokenizer.segments(text)
    assert [part for part, _ in segments] == ["<|im_start|>", "user\nHello there", "<|im_end|>"]
    assert sum(count for _, count in segments) * 4 == len(tokenizer.encode(text))


def test_the_encoder_is_told(tokenizer: PromptTokenizer) -> None:
    assert tokenizer.encoder == "tiktoken"
    assert LEAST_INLINE_CHARACTERS <= tokenizer.inline_characters <= MOST_INLINE_CHARACTERS


def test_special_tokens_around_a_text_are_put_there_once(smollm2: Path) -> None:
    declared = json.loads((smollm2 / "tokenizer.json").read_text())
    declared["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    model = Model(json.dumps(declared).encode())
    for text in ("", "plain", "<|im_start|>user\nquestion " * 100 + "<|im_end|>", "x<|im_end|>y"):
        framed = token_bytes(model.reference.encode(text).ids)
        assert framed == token_bytes([1]) + model.ids(text)
        for _ in range(2):
            prepared = model.ours.prepare(text, add_special_tokens=True)
            assert prepared.encode() == framed
            assert prepared.keys(SEED, 16) == chain(framed, SEED, block_tokens=16)
            assert model.ours.prepare(text).keys(SEED, 16) == chain(model.ids(text), SEED, block_tokens=16)
    model.ours.prepare("plain", add_special_tokens=True).encode()
    assert model.ours.prepare("plain", add_special_tokens=True).new_characters == 0


@pytest.mark.parametrize(
    "change",
    [
        {"lstrip": True},
        {"rstrip": True},
        {"single_word": True},
    ],
)
def test_special_tokens_that_reach_beyond_themselves_switch_segments_off(smollm2: Path, change: dict) -> None:
    declared = json.loads((smollm2 / "tokenizer.json").read_text())
    declared["added_tokens"][1].update(change)
    changed = json.dumps(declared)
    tokenizer = PromptTokenizer(changed.encode())
    text = "a <|im_start|> b<|im_end|>"
    assert len(tokenizer.segments(text)) == 1
    assert tokenizer.encode(text) == token_bytes(Tokenizer.from_str(changed).encode(text, add_special_tokens=False).ids)


def test_a_tokenizer_whose_segments_depend_on_each_other_is_found_out(smollm2: Path) -> None:
    """One that puts a blank in front of the text's first word, as some SentencePiece conversions do."""
    declared = json.loads((smollm2 / "tokenizer.json").read_text())
    declared["normalizer"] = {"type": "Prepend", "prepend": "x"}
    changed = json.dumps(declared)
    text = "a<|im_start|>b<|im_end|>c"
    assert PromptTokenizer(changed.encode()).encode(text) == token_bytes(
        Tokenizer.from_str(changed).encode(text, add_special_tokens=False).ids
    )


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[1]"])
def test_files_that_are_no_tokenizer_are_refused(content: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not usable"):
        PromptTokenizer(content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: No such file"):
        PromptTokenizer.from_folder(tmp_path)


def giving_up_on(pattern: str) -> bytes:
    """A tokenizer whose pattern engine may go back and forth too often."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_characters(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    return tokenizer.to_str().encode()


def test_a_pattern_that_gives_up_on_probes_is_not_usable() -> None:
    with pytest.raises(TokenizerError, match="gave up"):
        PromptTokenizer(giving_up_on("(a+)+b|[^a]+|a"))


def test_a_pattern_that_gives_up_on_a_text_costs_that_text_its_keys() -> None:
    tokenizer = PromptTokenizer(giving_up_on("(a|aa)+$|[^ ]+| +"))
    assert tokenizer.encode("b")
    with pytest.raises(PanicError, match="gave up"):
        tokenizer.encode("a" * 3_000 + " b")
    keyer = PromptKeyer(tokenizer, None, budget_seconds=10)
    body = parse_body(orjson.dumps({"model": "m", "prompt": "a" * 3_000 + " b"}), BodyKind.COMPLETION)
    assert asyncio.run(keyer.key(body, KeySpace("f", 16))) == Unkeyed("error", body.estimated_tokens)
    keyer.close()


@pytest.mark.parametrize("model", [models.Unigram([("a", 0.0)]), models.WordPiece({"a": 0}, unk_token="[UNK]")])
def test_a_model_that_cannot_tokenise_probes_is_not_usable(model: models.Model) -> None:
    with pytest.raises(TokenizerError, match="not usable"):
        PromptTokenizer(Tokenizer(model).to_str().encode())
