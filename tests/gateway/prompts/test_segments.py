"""Each token of a prompt is ascribed to the part of the request that it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.prompts.encoding import Encoded, PromptEncoder
from gateway.prompts.prompt_input import Chat, Completion, Handling, PromptInput, Truncation, Unkeyed
from gateway.prompts.segments import Segment, explain_prompt
from gateway.prompts.tokenizer import PromptTokenizer
from indexer.keys import TOKEN_BYTES
from tests.gateway.prompts.test_encoding import CHAT, MEDIA, PARTS
from warmroute.chat_template import ChatTemplate

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool>{{ c.function.name }}</tool>{% endfor %}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> PromptTokenizer:
    return PromptTokenizer.from_folder(smollm2)


@pytest.fixture(scope="module")
def encoder(tokenizer: PromptTokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, ChatTemplate(TEMPLATE))


def segments(encoder: PromptEncoder, request: PromptInput) -> list[Segment]:
    made = explain_prompt(encoder, request)
    assert isinstance(made, list)
    encoded = encoder.encode(request, character_limit=1 << 40)
    assert isinstance(encoded, Encoded)
    place = 0
    for segment in made:
        assert segment.first_token == place
        assert segment.tokens > 0
        place += segment.tokens
    assert place * TOKEN_BYTES == len(encoded.token_ids)
    return made


def test_a_chat(encoder: PromptEncoder, tokenizer: PromptTokenizer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": "I ask.", "tool_calls": [call]},
    ]
    made = segments(encoder, Chat(messages))
    assert [segment.source for segment in made] == [
        "template",
        "messages[0] (system)",
        "template",
        "messages[1] (user)",
        "template",
        "messages[2] (assistant)",
        "template",
        "messages[2] (assistant)",
        "template",
    ]
    assert made[3].tokens == len(tokenizer.encode("What is the weather?")) // TOKEN_BYTES


def test_tools_come_before_the_messages_that_name_them_too(encoder: PromptEncoder) -> None:
    tool = {"type": "function", "function": {"name": "weather", "description": None, "parameters": None}}
    made = segments(encoder, Chat([{"role": "user", "content": "weather"}], [tool]))
    assert [segment.source for segment in made if segment.source != "template"] == ["tools", "messages[0] (user)"]


def test_prompts_media_and_cut_chats(encoder: PromptEncoder, tokenizer: PromptTokenizer) -> None:
    assert [each.source for each in segments(encoder, Completion(["one two three"]))] == ["prompt[0]"]
    assert [each.source for each in segments(encoder, Completion([[1], [1, 2, 3]]))] == ["prompt[1]"]
    with_media = PromptEncoder(tokenizer, ChatTemplate(PARTS), MEDIA)
    assert [each.source for each in segments(with_media, CHAT)] == ["chat", "media", "chat"]
    cut = Chat([{"role": "user", "content": "one two three"}], handling=Handling(False, Truncation(2)))
    assert [each.source for each in segments(encoder, cut)] == ["chat"]


def test_what_has_no_keys_says_why(tokenizer: PromptTokenizer) -> None:
    assert explain_prompt(PromptEncoder(tokenizer, None), CHAT) == Unkeyed("template")


turns = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": st.text(max_size=15)})


@given(messages=st.lists(turns, min_size=1, max_size=5))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chats_tokens_are_ascribed_without_gaps(encoder: PromptEncoder, messages: list) -> None:
    segments(encoder, Chat(messages))
