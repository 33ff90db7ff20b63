"""Token ids of requests: special tokens, truncation, several prompts, media."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from gateway.prompts.encoding import Encoded, PromptEncoder, Unfinished, common_start
from gateway.prompts.media import item_digest
from gateway.prompts.prompt_input import Chat, Completion, Handling, Truncation, Unkeyed
from gateway.prompts.tokenizer import PromptTokenizer
from indexer.keys import TOKEN_BYTES, token_bytes
from warmroute.chat_template import ChatTemplate, ChatTemplateError, ConversationError
from warmroute.config.pool import MediaTokensConfig, PoolConfig

NO_LIMIT = 1 << 40
USER = {"role": "user", "content": "hi"}
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% else %}<repo_name>{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)
TEXTS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
MEDIA = {"image": MediaTokensConfig(placeholder="<repo_name>", repeat="<file_sep>", tokens=5)}


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> PromptTokenizer:
    return PromptTokenizer.from_folder(smollm2)


@pytest.fixture(scope="module")
def encoder(smollm2: Path, tokenizer: PromptTokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, ChatTemplate.from_folder(smollm2))


@pytest.fixture(scope="module")
def with_bos(smollm2: Path) -> PromptEncoder:
    """A tokenizer that puts special tokens around a text, as many do, and a template that writes the first one."""
    declared = json.loads((smollm2 / "tokenizer.json").read_text())
    declared["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]}
            for token, number in (("<|endoftext|>", 0), ("<|im_end|>", 2))
        },
    }
    template = ChatTemplate("{{ bos_token }}" + TEXTS, {"bos_token": "<|endoftext|>"})
    return PromptEncoder(PromptTokenizer(json.dumps(declared).encode()), template)


def ids(encoder: PromptEncoder, request: Chat | Completion) -> list[int]:
    encoded = encoded_by(encoder, request)
    return [
        int.from_bytes(encoded.token_ids[start : start + TOKEN_BYTES], "little")
        for start in range(0, len(encoded.token_ids), TOKEN_BYTES)
    ]


def encoded_by(encoder: PromptEncoder, request: Chat | Completion) -> Encoded:
    encoded = encoder.encode(request, character_limit=NO_LIMIT)
    assert isinstance(encoded, Encoded)
    return encoded


# --- against transformers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


texts = st.text(max_size=30) | st.sampled_from(["<|im_end|>", " padded ", "a\r\n\n", "<|im_start|>user\n", "漢字 🙂"])
turns = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts})


@given(messages=st.lists(turns, min_size=1, max_size=6), generation=st.booleans())
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chat_has_the_ids_that_transformers_gives_it(
    encoder: PromptEncoder, reference: Any, messages: list[Mapping[str, str]], generation: bool
) -> None:
    expected = reference.apply_chat_template(messages, add_generation_prompt=generation, return_dict=False)
    assert ids(encoder, Chat(messages, add_generation_prompt=generation)) == expected


@given(text=texts, special=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_has_the_ids_that_transformers_gives_it(
    encoder: PromptEncoder, reference: Any, text: str, special: bool
) -> None:
    expected = reference(text, add_special_tokens=special)["input_ids"]
    assert ids(encoder, Completion([text], Handling(special))) == expected


def test_a_final_message_goes_on(encoder: PromptEncoder, reference: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "The answer is "}]
    expected = reference.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    made = Chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert ids(encoder, made) == expected


# --- special tokens and truncation ---------------------------------------------------------------------------------


def test_a_bos_stands_once_unless_both_are_asked_for(with_bos: PromptEncoder) -> None:
    assert ids(with_bos, Chat([USER])).count(0) == 1
    assert ids(with_bos, Chat([USER], handling=Handling(True))).count(0) == 2
    assert ids(with_bos, Completion(["hi"]))[0] == 0
    assert 0 not in ids(with_bos, Completion(["hi"], Handling(False)))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 2, 3, 7, 1_000])
def test_truncation_is_that_of_the_tokenizer(
    with_bos: PromptEncoder, smollm2: Path, side: str, special: bool, kept: int
) -> None:
    text = "one two three four five six seven eight nine ten"
    whole = ids(with_bos, Completion([text], Handling(special)))
    made = ids(with_bos, Completion([text], Handling(special, Truncation(kept, side))))
    if kept >= 2 * special:
        reference = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
        plain = reference.encode(text, add_special_tokens=False).ids
        room = kept - 2 * special
        cut = (plain[-room:] if room else []) if side == "left" else plain[:room]
        assert made == ([0, *cut, 2] if special else cut)
    assert len(made) == min(max(kept, 2 * special), len(whole))


def test_token_ids_are_cut_as_they_are(encoder: PromptEncoder) -> None:
    assert ids(encoder, Completion([[1, 2, 3]], Handling(True, Truncation(2)))) == [2, 3]
    assert ids(encoder, Completion([[1, 2, 3]], Handling(True, Truncation(2, "right")))) == [1, 2]
    assert ids(encoder, Completion([[1, 2, 3]], Handling(True, Truncation(0)))) == []
    assert ids(encoder, Completion([[1, 2, 3]])) == [1, 2, 3]


def test_a_cut_to_the_models_length_is_not_known_here(encoder: PromptEncoder) -> None:
    assert not encoded_by(encoder, Completion(["x"], Handling(True, exact=False))).exact
    assert encoded_by(encoder, Completion(["x"])).exact


# --- several prompts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [["a b", "c d e f", "g"], [[1, 2], [3, 4, 5, 6], [7]]])
def test_of_several_prompts_the_longest_is_keyed_and_all_are_counted(encoder: PromptEncoder, prompts: list) -> None:
    encoded = encoded_by(encoder, Completion(prompts))
    each = [ids(encoder, Completion([prompt])) for prompt in prompts]
    assert encoded.tokens == sum(map(len, each))
    assert encoded.token_ids == token_bytes(each[1][:-1])


def test_more_characters_than_the_limit_are_not_tokenised(encoder: PromptEncoder) -> None:
    text = Completion(["x" * 101])
    unfinished = encoder.encode(text, character_limit=100)
    assert isinstance(unfinished, Unfinished)
    assert encoder.finish(unfinished) == encoder.encode(text, character_limit=NO_LIMIT)
    assert encoder.encode(Completion([""] * 8), character_limit=100) is None
    assert encoder.encode(Completion([[1] * 1_000]), character_limit=100) is not None
    chat = Chat([{"role": "user", "content": "never seen " * 20}])
    assert isinstance(encoder.encode(chat, character_limit=100), Unfinished)


# --- media ---------------------------------------------------------------------------------------------------------


def image(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **fields}


def media_encoder(tokenizer: PromptTokenizer, source: str, media: dict | None = None) -> PromptEncoder:
    return PromptEncoder(tokenizer, ChatTemplate(source), media)


CHAT = Chat([USER, {"role": "user", "content": ["What is in ", image("https://x/1.png"), " here?"]}])


@pytest.mark.parametrize("source", [PARTS, TEXTS])
def test_media_of_unknown_length_end_what_is_keyed(tokenizer: PromptTokenizer, source: str) -> None:
    encoder = media_encoder(tokenizer, source)
    before = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>user\n" + ("What is in" if source == PARTS else "")
    encoded = encoded_by(encoder, CHAT)
    assert encoded.token_ids == tokenizer.encode(before)
    assert not encoded.exact
    assert encoded.tokens > len(encoded.token_ids) // TOKEN_BYTES


def test_media_of_known_length_are_put_in(tokenizer: PromptTokenizer) -> None:
    encoder = media_encoder(tokenizer, PARTS, MEDIA)
    encoded = encoded_by(encoder, CHAT)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>user\nWhat is in " + "<file_sep>" * 5 + " here?<|im_end|>\n"
    assert encoded.token_ids == tokenizer.encode(text)
    (item,) = encoded.items
    assert item.digest == item_digest(CHAT.messages[1]["content"][1])
    first = len(tokenizer.encode(text.partition("<file_sep>")[0])) // TOKEN_BYTES
    assert (item.first, item.tokens, encoded.exact) == (first, 5, True)


def test_templates_that_take_texts_get_the_placeholders_in_front(tokenizer: PromptTokenizer) -> None:
    encoded = encoded_by(media_encoder(tokenizer, TEXTS, MEDIA), CHAT)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>user\n" + "<file_sep>" * 5 + "\nWhat is in \n here?<|im_end|>\n"
    assert encoded.token_ids == tokenizer.encode(text)


def test_a_text_that_spells_a_placeholder_out_is_not_taken_for_one(tokenizer: PromptTokenizer) -> None:
    encoder = media_encoder(tokenizer, PARTS, MEDIA)
    spelt = Chat([{"role": "user", "content": ["<repo_name>", image("u")]}])
    encoded = encoded_by(encoder, spelt)
    assert encoded.token_ids == tokenizer.encode("<|im_start|>user\n<repo_name>")
    assert not encoded.exact


def test_other_kinds_of_media_end_what_is_keyed(tokenizer: PromptTokenizer) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    encoder = media_encoder(tokenizer, PARTS, MEDIA)
    assert not encoded_by(encoder, Chat([{"role": "user", "content": [image("u"), audio]}])).exact


def test_placeholders_that_are_no_token_are_left_aside(
    tokenizer: PromptTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    media = {"image": MediaTokensConfig(placeholder="several tokens", tokens=5)}
    encoder = media_encoder(tokenizer, PARTS, media)
    assert "media.image: placeholder and repeat must each be one token" in caplog.text
    assert not encoded_by(encoder, CHAT).exact


def test_pools_say_how_many_tokens_media_take() -> None:
    pool = PoolConfig.model_validate({"model": "m", "media": {"image": {"placeholder": "<i>", "tokens": 5}}})
    assert pool.media["image"].repeat_text == "<i>"
    for wrong in ({"hologram": {"placeholder": "<i>", "tokens": 5}}, {"image": {"placeholder": "<i>", "tokens": 0}}):
        with pytest.raises(ValidationError, match="media"):
            PoolConfig.model_validate({"model": "m", "media": wrong})


id_lists = st.lists(st.integers(0, 3), max_size=12)


@given(one=id_lists, other=id_lists)
def test_the_common_start_is_the_longest(one: list[int], other: list[int]) -> None:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    assert common_start(token_bytes(one), token_bytes(other)) == token_bytes(one[:same])


def test_media_and_truncation_together_are_the_engines(tokenizer: PromptTokenizer) -> None:
    cut = Chat(CHAT.messages, handling=Handling(False, Truncation(5)))
    assert media_encoder(tokenizer, PARTS).encode(cut, character_limit=NO_LIMIT) == Unkeyed("media")


@pytest.mark.parametrize("media", [None, MEDIA])
def test_long_texts_beside_media_count_against_the_limit(tokenizer: PromptTokenizer, media: dict | None) -> None:
    chat = Chat([{"role": "user", "content": ["never seen before " * 30, image("u")]}])
    assert media_encoder(tokenizer, PARTS, media).encode(chat, character_limit=100) is None


# --- refusals ------------------------------------------------------------------------------------------------------


def test_refusals_say_whose_they_are(tokenizer: PromptTokenizer) -> None:
    assert PromptEncoder(tokenizer, None).encode(Chat([USER]), character_limit=9) == Unkeyed("template")
    encoder = media_encoder(tokenizer, "{{ raise_exception('no') }}")
    with pytest.raises(ChatTemplateError, match="no"):
        encoder.encode(Chat([USER]), character_limit=NO_LIMIT)
    with pytest.raises(ConversationError):
        encoder.encode(Chat([{"role": "user", "content": 7}]), character_limit=NO_LIMIT)
