"""Items of a response become the chat that vLLM makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.prompts.prompt_input import Chat, MalformedError, Unkeyed
from gateway.prompts.responses import response_prompt
from warmroute.chat_template import ConversationError

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "id": "fc_1"}
CALLED = {"id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}, "type": "function"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "22"}
REASONING = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
USER = {"role": "user", "content": "hi"}


def said(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **fields}


def chat(**fields: Any) -> Chat:
    made = response_prompt(fields)
    assert isinstance(made, Chat)
    return made


def messages(*items: dict[str, Any]) -> list:
    return list(chat(input=list(items)).messages)


def test_a_text_with_instructions() -> None:
    made = chat(input="hi", instructions="Be brief.", reasoning={"effort": "low"}, truncation="auto")
    assert made.messages == [{"role": "system", "content": "Be brief."}, USER]
    assert made.variables == {"reasoning_effort": "low", "enable_thinking": True}
    assert not made.handling.exact
    assert not made.typed_calls
    assert chat(input="hi", truncation="disabled").handling.exact


def test_a_turn_of_the_assistants_is_one_message() -> None:
    assert messages(USER, REASONING, said("Let me see."), CALL, CALL, OUTPUT) == [
        USER,
        {"role": "assistant", "reasoning": "hm", "content": "Let me see.", "tool_calls": [CALLED, CALLED]},
        {"role": "tool", "content": "22", "tool_call_id": "c1"},
    ]


def test_what_a_message_has_already_begins_another() -> None:
    assert messages(said("a"), said("b")) == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    assert messages(REASONING, REASONING) == [{"role": "assistant", "reasoning": "hm"}] * 2
    assert messages(CALL, USER) == [{"role": "assistant", "tool_calls": [CALLED]}, USER]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (USER, USER),
        ({"type": "message", **USER}, {"type": "message", **USER}),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        ),
        ({"role": "assistant", "content": "x"}, {"role": "assistant", "content": "x"}),
        ({"role": "assistant", "content": []}, {"role": "assistant", "content": ""}),
        ({"type": "reasoning", "summary": [{"text": "s"}]}, {"role": "assistant", "reasoning": "s"}),
        (
            {"type": "reasoning", "summary": [{"text": "s"}], "content": ["c"]},
            {"role": "assistant", "reasoning": "c"},
        ),
    ],
)
def test_items(item: dict, message: dict) -> None:
    assert messages(item) == [message]


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
def test_an_unfinished_last_message_is_continued(status: str) -> None:
    made = chat(input=[USER, said("The answer", status=status)])
    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)
    done = chat(input=[USER, said("The answer", status="completed")])
    assert (done.continue_final_message, done.add_generation_prompt) == (False, True)


def test_functions_among_the_tools_are_declared() -> None:
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "x": 1}
    declared = {"name": "f", "description": None, "parameters": {"type": "object"}, "strict": True}
    made = chat(input="hi", tools=[{"type": "web_search"}, function])
    assert made.tools == [{"type": "function", "function": declared}]
    assert chat(input="hi", tools=[]).tools is None
    assert chat(input="hi", tools=[{"type": "web_search"}]).tools == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input": "hi", "previous_response_id": "resp_1"}, "stored"),
        ({"input": "hi", "prompt": {"id": "p"}}, "stored"),
        ({"input": [{"type": "web_search_call"}]}, "items"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "items"),
        ({"input": [{"type": ["message"]}]}, "items"),
        ({"input": [{**REASONING, "encrypted_content": "x"}]}, "items"),
        ({"input": "hi", "chat_template_kwargs": {"tokenize": True}}, "template"),
    ],
)
def test_what_only_the_engine_can_make_a_prompt_of(fields: dict, reason: str) -> None:
    assert response_prompt(fields) == Unkeyed(reason)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input": []},
        {"input": 7},
        {"input": ["x"]},
        {"input": "x", "instructions": 7},
        {"input": [{**CALL, "arguments": {}}]},
        {"input": [{**CALL, "namespace": "n"}]},
        {"input": [{"role": "assistant", "content": [7]}]},
        {"input": "x", "tools": "x"},
        {"input": "x", "tools": [{"type": "namespace", "name": "n"}]},
        {"input": "x", "tools": [{"type": "function"}]},
    ],
)
def test_shapes_that_engines_refuse(fields: dict) -> None:
    with pytest.raises((MalformedError, ConversationError)):
        response_prompt(fields)
