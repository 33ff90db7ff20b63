"""Bodies: whatever clients send, routing takes what it can use and never fails on the rest."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.body import BadRequestError, BodyKind, Chat, Completion, Unkeyed, parse_body

USER = {"role": "user", "content": "hi"}


def body(**fields) -> bytes:
    return orjson.dumps({"model": "m", **fields})


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'"text"', None),
        (b'{"model": "\\ud800"}', None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b"{}", "model"),
        (b'{"model": ["m"]}', "model"),
        (b'{"model": ""}', "model"),
    ],
)
def test_what_no_worker_could_serve_is_refused(raw: bytes, param: str | None) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_body(raw, BodyKind.CHAT)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("kind", "fields", "prompt"),
    [
        (BodyKind.CHAT, {"messages": [USER]}, Chat([USER])),
        (BodyKind.COMPLETION, {"prompt": "x"}, Completion(["x"])),
        (BodyKind.RESPONSE, {"input": "hi"}, Chat([USER], typed_calls=False)),
        (BodyKind.MESSAGES, {"messages": [USER]}, Chat([USER])),
    ],
)
def test_each_api_has_its_reader(kind: BodyKind, fields: dict, prompt: object) -> None:
    assert parse_body(body(**fields), kind).prompt == prompt


@pytest.mark.parametrize("kind", BodyKind)
@pytest.mark.parametrize("fields", [{}, {"messages": 1, "input": 1}])
def test_bodies_without_a_prompt_are_left_to_the_engine(kind: BodyKind, fields: dict) -> None:
    assert parse_body(body(**fields), kind).prompt == Unkeyed("malformed")


def test_a_salt_that_is_no_text_is_left_to_the_engine() -> None:
    parsed = parse_body(body(messages=[USER], cache_salt=7), BodyKind.CHAT)
    assert (parsed.prompt, parsed.salt) == (Unkeyed("malformed"), "")
    assert parse_body(body(messages=[USER], cache_salt="s"), BodyKind.CHAT).salt == "s"


def test_what_is_not_keyed_is_estimated_by_its_size() -> None:
    raw = body(input="x" * 4_000, previous_response_id="resp_1")
    assert parse_body(raw, BodyKind.RESPONSE).prompt == Unkeyed("stored", len(raw) // 4)


def test_pictures_that_are_sent_along_are_no_text() -> None:
    data = "data:image/png;base64," + "A" * 40_000
    raw = body(messages=[{"role": "user", "content": ["hi", {"type": "image_url", "image_url": {"url": data}}]}])
    parsed = parse_body(raw, BodyKind.CHAT)
    assert parsed.media_bytes == len(data)
    assert parsed.estimated_tokens == (len(raw) - len(data)) // 4 < 100
    assert parse_body(body(prompt="x" * 400), BodyKind.COMPLETION).estimated_tokens > 100


def test_text_inside_a_prompt_is_only_text() -> None:
    """A prompt that quotes another request's fields changes neither model nor salt."""
    parsed = parse_body(body(prompt='", "model": "other", "cache_salt": "x"'), BodyKind.COMPLETION)
    assert (parsed.model, parsed.salt) == ("m", "")


FIELDS = [
    "messages",
    "prompt",
    "input",
    "tools",
    "cache_salt",
    "instructions",
    "system",
    "reasoning",
    "documents",
    "truncate_prompt_tokens",
    "truncation_side",
    "add_special_tokens",
    "continue_final_message",
    "add_generation_prompt",
    "chat_template_kwargs",
    "kv_transfer_params",
    "output_config",
    "reasoning_effort",
    "prompt_embeds",
]
WORDS = [
    "role",
    "content",
    "type",
    "text",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "parameters",
    "input_schema",
    "source",
    "data",
    "url",
    "image_url",
    "summary",
    "output",
    "call_id",
    "status",
    "effort",
    "prompt_token_ids",
    "thinking",
    "uuid",
]
KINDS = [
    "user",
    "assistant",
    "system",
    "tool",
    "developer",
    "message",
    "function",
    "function_call",
    "function_call_output",
    "reasoning",
    "image_url",
    "image",
    "tool_use",
    "tool_result",
    "thinking",
    "input_image",
    "incomplete",
    "base64",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(FIELDS), json_values), st.sampled_from(BodyKind))
def test_no_json_makes_it_fail_in_another_way(fields: dict, kind: BodyKind) -> None:
    assert parse_body(body(**fields), kind).model == "m"
