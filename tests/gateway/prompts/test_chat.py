"""The fields of a chat that make its prompt."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.prompts.chat import chat_prompt
from gateway.prompts.prompt_input import Chat, Completion, Handling, MalformedError, Truncation, Unkeyed
from warmroute.chat_template import ConversationError

USER = {"role": "user", "content": "hi"}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}


def chat(**fields: Any) -> Chat | Completion | Unkeyed:
    return chat_prompt({"messages": [USER], **fields})


def test_a_chat_with_all_its_parts() -> None:
    documents = [{"title": "t", "text": "x"}]
    made = chat(
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        documents=documents,
        chat_template_kwargs={"custom": 1, "absent": None, "choice": "auto"},
        add_generation_prompt=False,
        add_special_tokens=True,
        truncate_prompt_tokens=7,
    )
    function = {"name": "f", "description": None, "parameters": {}}
    assert made == Chat(
        [USER],
        [{"type": "function", "function": function}],
        add_generation_prompt=False,
        variables={"custom": 1, "documents": documents},
        handling=Handling(True, Truncation(7)),
    )


@pytest.mark.parametrize(
    ("fields", "handling"),
    [
        ({}, Handling(False)),
        ({"truncate_prompt_tokens": 0}, Handling(False, Truncation(0))),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, Handling(False, Truncation(3, "right"))),
        ({"truncate_prompt_tokens": -1}, Handling(False, exact=False)),
    ],
)
def test_handling(fields: dict, handling: Handling) -> None:
    made = chat(**fields)
    assert isinstance(made, Chat)
    assert made.handling == handling


def test_a_final_message_is_continued() -> None:
    made = chat(continue_final_message=True, add_generation_prompt=False)
    assert isinstance(made, Chat)
    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low", "enable_thinking": False},
        ),
        ({"reasoning_effort": None}, {}),
        ({"chat_template_kwargs": {"add_generation_prompt": False, "continue_final_message": True}}, {}),
    ],
)
def test_variables(fields: dict, variables: dict) -> None:
    made = chat(**fields)
    assert isinstance(made, Chat)
    assert made.variables == variables


def test_token_ids_that_come_along_are_the_prompt_but_for_media() -> None:
    transfer = {"prompt_token_ids": [1, 2, 3]}
    assert chat(kv_transfer_params=transfer) == Completion([[1, 2, 3]], Handling(False))
    assert chat_prompt({"messages": [IMAGE], "kv_transfer_params": transfer}) == Chat([IMAGE])
    assert chat(kv_transfer_params={"prompt_token_ids": []}) == Chat([USER])


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"sanitize_control_tokens": True}},
    ],
)
def test_templates_and_ways_of_the_clients_own(fields: dict) -> None:
    assert chat(**fields) == Unkeyed("template")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "hi"},
        {"messages": []},
        {"messages": ["hi"]},
        {"tools": "x"},
        {"tools": [{}]},
        {"documents": [1]},
        {"chat_template_kwargs": [1]},
        {"reasoning_effort": 3},
        {"add_generation_prompt": "no"},
        {"continue_final_message": True},
        {"add_special_tokens": 1},
        {"truncate_prompt_tokens": -2},
        {"truncate_prompt_tokens": True},
        {"truncate_prompt_tokens": 1, "truncation_side": "middle"},
        {"kv_transfer_params": {"prompt_token_ids": "x"}},
    ],
)
def test_shapes_that_engines_refuse(fields: dict) -> None:
    with pytest.raises((MalformedError, ConversationError)):
        chat(**fields)
