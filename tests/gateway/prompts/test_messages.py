"""Blocks of Anthropic's Messages become the chat that vLLM makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.prompts.messages import message_prompt
from gateway.prompts.prompt_input import Chat, MalformedError, Unkeyed
from warmroute.chat_template import ConversationError

USER = {"role": "user", "content": "hi"}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def chat(*given: dict[str, Any], **fields: Any) -> Chat:
    made = message_prompt({"messages": list(given), **fields})
    assert isinstance(made, Chat)
    return made


def messages(*given: dict[str, Any]) -> list:
    return list(chat(*given).messages)


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be kind.", "Be kind."),
        ([{"type": "text", "text": "Be"}, {"type": "text", "text": " kind."}], "Be kind."),
        ([{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be kind."}], "Be kind."),
    ],
)
def test_the_system_is_one_message(system: object, text: str) -> None:
    assert chat(USER, system=system).messages == [{"role": "system", "content": text}, USER]


def test_an_empty_system_is_none() -> None:
    assert chat(USER, system="").messages == chat(USER, system=[]).messages == [USER]


def test_a_turn_of_the_assistants() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"city": "Zürich"}},
    ]
    (message,) = messages({"role": "assistant", "content": blocks})
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Z\\u00fcrich"}'}}
    assert message == {"role": "assistant", "reasoning": "hm", "tool_calls": [call], "content": "Let me see."}


def test_results_of_tools_come_before_what_the_user_says() -> None:
    blocks = [
        {"type": "text", "text": "There."},
        {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "text", "text": "b"},
                {"type": "image", "source": SOURCE},
            ],
        },
        {"type": "tool_result", "tool_use_id": "t2", "content": "c"},
        {"type": "tool_result", "tool_use_id": "t3"},
    ]
    assert messages({"role": "user", "content": blocks}) == [
        {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
        {"role": "user", "content": [IMAGE]},
        {"role": "tool", "tool_call_id": "t2", "content": "c"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "There."},
    ]


def test_a_message_of_results_alone_is_no_users_message() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "f"}]}
    assert messages({"role": "user", "content": [result]}) == [
        {"role": "tool", "tool_call_id": "t", "content": ""},
        {"role": "tool", "tool_call_id": "t", "content": [{"type": "tool_reference", "name": "f"}]},
    ]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        (SOURCE, "data:image/png;base64,AAAA"),
        ({"data": "AAAA"}, "data:image/jpeg;base64,AAAA"),
        ({"type": "url", "url": "https://x/1.png"}, "https://x/1.png"),
    ],
)
def test_images(source: dict, url: str) -> None:
    (message,) = messages({"role": "user", "content": [{"type": "image", "source": source}]})
    assert message["content"] == [{"type": "image_url", "image_url": {"url": url}}]


def test_tools_and_effort() -> None:
    made = chat(
        USER,
        tools=[{"name": "f", "description": "d", "input_schema": {"properties": {}}, "cache_control": {}}],
        output_config={"effort": "high"},
    )
    function = {"name": "f", "description": "d", "parameters": {"properties": {}, "type": "object"}}
    assert made.tools == [{"type": "function", "function": function}]
    assert made.variables == {"reasoning_effort": "high", "enable_thinking": True}


def test_system_messages_among_the_others_go_where_the_engine_puts_them() -> None:
    assert message_prompt({"messages": [USER, {"role": "system", "content": "x"}]}) == Unkeyed("inline_system")
    assert message_prompt({"messages": [USER], "chat_template_kwargs": {"tools": []}}) == Unkeyed("template")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": [], "content": "x"}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": ["x"]}]},
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "content": "x"}]}]},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [USER], "system": 7},
        {"messages": [USER], "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"messages": [USER], "tools": "x"},
    ],
)
def test_shapes_that_engines_refuse_or_read_otherwise(fields: dict) -> None:
    with pytest.raises((MalformedError, ConversationError)):
        message_prompt(fields)
