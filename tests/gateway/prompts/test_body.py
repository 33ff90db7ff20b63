"""Bodies: whatever clients send, routing takes what it can use and never fails on the rest."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.body import BadRequestError, Chat, Unkeyed, parse_body

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
        parse_body(raw, chat=True)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "malformed"),
        ({"messages": "hi"}, "malformed"),
        ({"messages": []}, "malformed"),
        ({"messages": ["hi"]}, "malformed"),
        ({"messages": [{"role": "user", "content": 7}]}, "malformed"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "malformed"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "malformed"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "media"),
        ({"messages": [{"role": "user", "content": [{"type": [], "text": {}}]}]}, "malformed"),
        ({"messages": [USER], "tools": "x"}, "malformed"),
        ({"messages": [USER], "chat_template_kwargs": [1]}, "malformed"),
        ({"messages": [USER], "chat_template": "x"}, "template"),
        ({"messages": [USER], "cache_salt": 7}, "malformed"),
    ],
)
def test_odd_chats_are_left_to_the_engine(fields: dict, reason: str) -> None:
    assert parse_body(body(**fields), chat=True).prompt == Unkeyed(reason)


def test_a_chat_with_its_parts() -> None:
    parsed = parse_body(
        body(
            messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            tools=[{"type": "function"}],
            cache_salt="s",
            add_generation_prompt=False,
            chat_template_kwargs={"enable_thinking": False},
        ),
        chat=True,
    )
    assert parsed.salt == "s"
    assert parsed.prompt == Chat(
        [{"role": "user", "content": "a\nb"}], [{"type": "function"}], False, {"enable_thinking": False}
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", "text"),
        (["text"], "text"),
        ([1, 2], [1, 2]),
        (["a", "b"], Unkeyed("several_prompts")),
        ([[1], [2]], Unkeyed("several_prompts")),
        ([], Unkeyed("malformed")),
        (None, Unkeyed("malformed")),
        ({}, Unkeyed("malformed")),
    ],
)
def test_completions(prompt: object, expected: object) -> None:
    assert parse_body(body(prompt=prompt), chat=False).prompt == expected


def test_text_inside_a_prompt_is_only_text() -> None:
    """A prompt that quotes another request's fields changes neither model nor salt."""
    parsed = parse_body(body(prompt='", "model": "other", "cache_salt": "x"'), chat=False)
    assert (parsed.model, parsed.salt) == ("m", "")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "type", "text"]), inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["messages", "prompt", "tools", "cache_salt"]), json_values), st.booleans())
def test_no_json_makes_it_fail_in_another_way(fields: dict, chat: bool) -> None:
    assert parse_body(body(**fields), chat=chat).model == "m"
