"""What workers get: the edits that were asked for, and every other byte as it came."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.base import HINTS, Dialect
from gateway.engines.registry import dialect
from gateway.requests.request_edits import RequestEdits, lacks_usage

PLAIN = Dialect()


def apply(text: str, edits: RequestEdits, engine: str | None = None) -> str:
    body = text.encode()
    return edits.apply(body, orjson.loads(body), dialect(engine)).decode()


def test_nothing_to_change_is_the_same_object() -> None:
    body = b'{ "model" : "m", "messages" : [ ] }'
    assert RequestEdits().apply(body, orjson.loads(body), dialect("vllm")) is body


@pytest.mark.parametrize(
    ("text", "edits", "engine", "expected"),
    [
        ('{"model": "a", "x":1.50}', RequestEdits(model="b"), None, '{"model": "b", "x":1.50}'),
        (
            '{"x":{"type":"model"}, "model" : "a"}',
            RequestEdits(model="b"),
            None,
            '{"x":{"type":"model"}, "model" : "b"}',
        ),
        (
            r'{"x":{"model":"c"},"mod\u0065l":"a"}',
            RequestEdits(model="b"),
            None,
            r'{"x":{"model":"c"},"mod\u0065l":"b"}',
        ),
        ('{"model":"a","model":"c"}', RequestEdits(model="b"), None, '{"model":"b","model":"b"}'),
        ('{ "model":"a" }', RequestEdits(salt="s"), None, '{"cache_salt":"s", "model":"a" }'),
        ('{"cache_salt":"x","m":1}', RequestEdits(salt="s"), None, '{"cache_salt":"s","m":1}'),
        ('{"cache_salt":null,"cache_salt":7}', RequestEdits(salt="s"), None, '{"cache_salt":"s","cache_salt":"s"}'),
        (
            '{"stream":true}',
            RequestEdits(ask_usage=True),
            None,
            '{"stream_options":{"include_usage":true},"stream":true}',
        ),
        (
            '{"stream_options":{"x": 1},"stream":true}',
            RequestEdits(ask_usage=True),
            None,
            '{"stream_options":{"include_usage":true,"x": 1},"stream":true}',
        ),
        (
            '{"stream_options": {"include_usage" : false},"stream":true}',
            RequestEdits(ask_usage=True),
            None,
            '{"stream_options": {"include_usage" : true},"stream":true}',
        ),
        ('{"stream_options":null}', RequestEdits(ask_usage=True), None, '{"stream_options":{"include_usage":true}}'),
        ('{"priority":5}', RequestEdits(), "vllm", '{"priority":-5}'),
        ('{"priority":-5}', RequestEdits(), "vllm", '{"priority":5}'),
        ('{"priority":5}', RequestEdits(), "sglang", '{"priority":5}'),
        ('{"priority":"high"}', RequestEdits(), "vllm", '{"priority":"high"}'),
        ('{"priority":true}', RequestEdits(), "vllm", '{"priority":true}'),
        (
            '{"priority":1, "model":"a", "workflow":{"id":"}"}, "n":1 ,"session_id":"s"}',
            RequestEdits(),
            "tensorrt-llm",
            '{"model":"a", "n":1}',
        ),
        ('{"priority":1}', RequestEdits(salt="s"), "tensorrt-llm", '{"cache_salt":"s"}'),
        ('{"priority":1}', RequestEdits(), "another", '{"priority":1}'),
    ],
)
def test_edits(text: str, edits: RequestEdits, engine: str | None, expected: str) -> None:
    assert apply(text, edits, engine) == expected


@pytest.mark.parametrize(
    ("fields", "lacks"),
    [
        ({"stream": True}, True),
        ({"stream": True, "stream_options": None}, True),
        ({"stream": True, "stream_options": {}}, True),
        ({"stream": True, "stream_options": {"include_usage": False}}, True),
        ({"stream": True, "stream_options": {"include_usage": True}}, False),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, False),
        ({"stream": True, "stream_options": {"include_usage": []}}, False),
        ({"stream": True, "stream_options": "x"}, False),
        ({"stream": False}, False),
        ({"stream": "true"}, False),
        ({}, False),
    ],
)
def test_which_streams_are_asked_for_usage(fields: dict[str, object], lacks: bool) -> None:
    assert lacks_usage(fields) is lacks


NAMES = st.sampled_from(["model", "cache_salt", "priority", "stream_options", "messages", "session_id", "nvext", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text(max_size=3) | st.just("include_usage"), v, max_size=2),
)


@given(
    st.dictionaries(NAMES, VALUES),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["vllm", "sglang", "tensorrt-llm", None]),
)
def test_a_parser_sees_the_edited_fields_and_no_other_change(
    fields: dict[str, object], model: bool, salt: bool, ask: bool, engine: str | None
) -> None:
    body = json.dumps(fields, indent=1).encode()
    ask = ask and lacks_usage({**fields, "stream": True})
    edits = RequestEdits(model="new" if model else None, salt="salty" if salt else None, ask_usage=ask)
    edited = json.loads(edits.apply(body, fields, dialect(engine)))
    expected = dict(fields)
    if engine == "tensorrt-llm":
        expected = {name: value for name, value in expected.items() if name not in HINTS}
    if model and "model" in expected:
        expected["model"] = "new"
    if salt:
        expected["cache_salt"] = "salty"
    if ask:
        expected["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
    if engine == "vllm" and type(priority := expected.get("priority")) is int:
        expected["priority"] = -priority
    assert edited == expected
