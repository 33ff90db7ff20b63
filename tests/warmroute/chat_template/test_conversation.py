"""Messages are rebuilt as vLLM rebuilds them."""

from __future__ import annotations

from typing import Any

import pytest

from warmroute.chat_template.conversation import ConversationError, MediaTexts, conversation
from warmroute.chat_template.tools import declared_tools

IMAGE = {"type": "image_url", "image_url": {"url": "https://x/1.png"}}


def rebuilt(*messages: dict[str, Any], openai: bool = False, **options: Any) -> list[dict[str, Any]]:
    options.setdefault("takes_developer", False)
    return conversation(messages, "openai" if openai else "string", **options).messages


@pytest.mark.parametrize(
    ("content", "string", "openai"),
    [
        ("hi", "hi", [{"type": "text", "text": "hi"}]),
        ("", "", [{"type": "text", "text": ""}]),
        (None, "", []),
        (["a", {"type": "text", "text": "b"}], "a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        ([{"type": "text", "text": ""}, "b"], "b", [{"type": "text", "text": ""}, {"type": "text", "text": "b"}]),
        ([{"type": "text", "text": None}, "b"], "b", [{"type": "text", "text": "b"}]),
        ([{"type": "refusal", "refusal": "no"}], "no", [{"type": "text", "text": "no"}]),
        ([{"type": "thinking", "thinking": "hm", "closed": True}], "hm", [{"type": "text", "text": "hm"}]),
        ([{"type": "input_text", "text": "i"}], "i", [{"type": "text", "text": "i"}]),
        (
            [{"type": "text", "text": "c", "cache_control": {"type": "ephemeral"}}],
            "c",
            [{"type": "text", "text": "c", "cache_control": {"type": "ephemeral"}}],
        ),
        ([{"type": "tool_reference", "name": "f"}], "f", [{"type": "tool_reference", "name": "f"}]),
    ],
)
def test_contents(content: object, string: str, openai: list) -> None:
    message = {"role": "user", "content": content}
    assert rebuilt(message) == [{"role": "user", "content": string}]
    assert rebuilt(message, openai=True) == [{"role": "user", "content": openai}]


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"role": 7, "content": "x"},
        {"role": "user", "content": 7},
        {"role": "user", "content": [7]},
        {"role": "user", "content": [{"type": []}]},
        {"role": "user", "content": [{"text": "x"}]},
        {"role": "user", "content": [{"type": "text", "text": 1}]},
        {"role": "user", "content": [{"type": "input_text"}]},
        {"role": "user", "content": [{"type": "file", "file": {}}]},
        {"role": "user", "content": [{"type": "hologram"}]},
        {"role": "assistant", "tool_calls": "x"},
        {"role": "assistant", "tool_calls": ["x"]},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
    ],
)
def test_shapes_that_engines_refuse(message: dict) -> None:
    with pytest.raises(ConversationError):
        rebuilt(message)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1, "b": null}', {"a": 1, "b": None}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        ("{broken", {}),
        ("[1]", {}),
        ("[" * 100_000, {}),
        (None, {}),
        (5, {}),
    ],
)
def test_arguments_of_tool_calls_become_objects(arguments: object, expected: dict) -> None:
    call = {"type": "function", "index": 0, "id": "c", "function": {"name": "f", "arguments": arguments}}
    (message,) = rebuilt({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["content"] == ""
    (made,) = message["tool_calls"]
    assert made["function"] == {"arguments": expected, "name": "f"}
    assert call["function"]["arguments"] is arguments


def test_the_chat_apis_types_order_a_tool_calls_fields() -> None:
    call = {"type": "function", "index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "tool_calls": [call]}
    (typed,), (untyped,) = rebuilt(message), rebuilt(message, typed_calls=False)
    assert list(typed["tool_calls"][0]) == ["id", "function", "type", "index"]
    assert list(typed["tool_calls"][0]["function"]) == ["arguments", "name"]
    assert list(untyped["tool_calls"][0]) == list(call)
    assert list(untyped["tool_calls"][0]["function"]) == ["name", "arguments"]


def test_fields_that_templates_know_are_kept_and_others_left_out() -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": [], "name": "Zoë", "audio": {}, "refusal": "no"}
    assert rebuilt(message) == [{"role": "assistant", "content": "x", "name": "Zoë"}]
    assert rebuilt({"role": "user", "content": "x", "tool_calls": [1], "reasoning": "r", "name": 7}) == [
        {"role": "user", "content": "x"}
    ]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_stands_under_both_names(field: str) -> None:
    (message,) = rebuilt({"role": "assistant", "content": "x", field: "because"})
    assert (message["reasoning"], message["reasoning_content"]) == ("because", "because")


def test_results_of_tools_are_strings_in_either_format() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "tool", "tool_call_id": "c", "content": parts}
    assert rebuilt(message, openai=True) == [{"role": "tool", "content": "a\nb", "tool_call_id": "c"}]
    reference = {"role": "tool", "content": [{"type": "tool_reference", "name": "f"}]}
    assert rebuilt(reference, openai=True)[0]["content"] == reference["content"]


def test_developers_become_the_system_where_the_template_does_not_know_them() -> None:
    developer = {"role": "developer", "content": "A", "tools": [{}]}
    user, system = {"role": "user", "content": "hi"}, {"role": "system", "content": "B"}
    assert rebuilt(developer, user) == [{"role": "system", "content": "A"}, user]
    assert rebuilt(system, user, developer) == [{"role": "system", "content": "B\n\nA"}, user]
    assert rebuilt(user, developer, openai=True)[0] == {"role": "system", "content": "A"}
    assert rebuilt(developer, takes_developer=True) == [developer]


def test_system_messages_are_merged_for_developers_only() -> None:
    messages = [{"role": role, "content": "x"} for role in ("system", "user", "system")]
    assert rebuilt(*messages) == messages


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x-anthropic-billing-header: 1\nBe kind.", "Be kind."),
        ([{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be kind."}], "Be kind."),
        (["x-anthropic-billing-header: 1\nBe kind."], "Be kind."),
        ("Say x-anthropic-billing-header", "Say x-anthropic-billing-header"),
    ],
)
def test_what_differs_in_each_request_of_one_client_is_dropped(content: object, expected: str) -> None:
    assert rebuilt({"role": "system", "content": content}) == [{"role": "system", "content": expected}]
    kept = {"role": "user", "content": "x-anthropic-billing-header: 1"}
    assert rebuilt(kept) == [kept]


def test_media_stand_where_the_template_puts_them_or_in_front() -> None:
    message = {"role": "user", "content": ["before", IMAGE, "after", {**IMAGE, "cache_control": 1}]}
    listed = conversation([message], "openai", takes_developer=True)
    assert listed.messages[0]["content"] == [
        {"type": "text", "text": "before"},
        {"type": "image"},
        {"type": "text", "text": "after"},
        {"type": "image", "cache_control": 1},
    ]
    assert [item.kind for item in listed.media] == ["image", "image"]
    texts = MediaTexts({"image": "<img>"})
    assert rebuilt(message, media=texts)[0]["content"] == "<img>\n<img>\nbefore\nafter"
    spelt = {"role": "user", "content": ["see <img>:", IMAGE]}
    assert rebuilt(spelt, media=texts)[0]["content"] == "see <img>:"


def test_a_mark_takes_the_place_of_media() -> None:
    message = {"role": "user", "content": ["before", IMAGE]}
    mark = MediaTexts(mark="#")
    assert rebuilt(message, openai=True, media=mark)[0]["content"][1] == {"type": "text", "text": "#"}
    assert rebuilt(message, media=mark)[0]["content"] == "#\nbefore"


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "input_image", "image_url": "u"}, "image"),
        ({"image_url": "u"}, "image"),
        ({"type": "text", "uuid": "1", "image_url": None}, "image"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "video_url", "video_url": {"url": "u"}}, "video"),
        ({"type": "prompt_embeds", "data": ""}, "prompt_embeds"),
    ],
)
def test_kinds_of_media(part: dict, kind: str) -> None:
    found = conversation([{"role": "user", "content": [part]}], "openai", takes_developer=True)
    assert [item.kind for item in found.media] == [kind]


def test_tools_are_declared_with_the_fields_that_engines_know() -> None:
    given = {
        "function": {"response": {}, "parameters": {"type": "object"}, "name": "f", "strict": None},
        "type": "function",
        "x": 1,
    }
    (tool,) = declared_tools([given])
    assert list(tool["function"].items()) == [
        ("name", "f"),
        ("description", None),
        ("parameters", {"type": "object"}),
    ]
    (deferred,) = declared_tools([{"defer_loading": True, "function": {"name": "f", "strict": True}}])
    assert deferred["defer_loading"] is True
    assert deferred["function"] == {
        "name": "f",
        "description": None,
        "parameters": None,
        "strict": True,
        "defer_loading": True,
    }


@pytest.mark.parametrize(
    "tools", ["x", [1], [{}], [{"function": {}}], [{"function": {"name": "f", "description": 1}}],
              [{"function": {"name": "f", "parameters": []}}]]
)  # fmt: skip
def test_tools_that_engines_refuse(tools: object) -> None:
    with pytest.raises(ConversationError):
        declared_tools(tools)
