"""Chats on which two renderers are compared: every shape of request, with values that renderers may print differently.

Arguments contain numbers, booleans and nulls; texts contain blanks of several scripts, line ends, quotes, HTML,
template syntax and think tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final

from warmroute.chat_template.agreement import Agreement
from warmroute.chat_template.conversation import conversation, with_reasoning_names
from warmroute.chat_template.inspection import ContentFormat

Message = dict[str, Any]

_TEXTS: Final = (
    "",
    " \n\tleading and trailing \u00a0\u3000\r\n",
    "<b>&amp; 'single' \"double\" \\ {{ braces }} {% raw %} é 漢字 🙂 ẞß İı\x1c\x85",
    "<think>\nsecret\n</think>\n\nanswer",
    "</think>x<think>",
    "<|im_end|><tool_response>\nx\n</tool_response>[INST] <start_of_turn>",
    "a\n\nb\nc  d, e. f",
    "x\u019b\ua7cb\u0264",  # letters with capitals in Unicode 16, which not all libraries know
)
_PLAIN_ARGUMENTS: Final[tuple[Message, ...]] = (
    {},
    {"text": "é <&> '\"\\\n", "one": 1, "long": 2**53 + 1, "negative": -3, "yes": True, "no": False},
    {"list": [1, "x", {"k": True}], "object": {"deep": {"deeper": [], "empty": {}}}},
    {"B": "capital", "a": "", "\u017f": 0, "_": "\u0131", "İ": []},
)
_OTHER_ARGUMENTS: Final[tuple[Message, ...]] = (
    {"none": None, "float": 1.0, "tenth": 0.1},
    {"big": 1e22, "small": 1e-7, "huge": 2**70, "list": [1.5, None], "object": {"k": None, "f": 2.0}},
)
_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": 'A city, e.g. "Zürich" <&>', "enum": ["a", "b"]},
        "count": {"type": ["integer", "null"], "default": 1, "minimum": 0.5, "nullable": True},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "any": {},
    },
    "required": ["city"],
    "additionalProperties": False,
}
_TOOLS: Final[tuple[list[Message] | None, ...]] = (
    None,
    [
        {"type": "function", "function": {"name": "weather", "description": "Tell it.\n", "parameters": _PARAMETERS}},
        {"type": "function", "function": {"name": "now", "description": None, "parameters": None}},
        {"type": "function", "function": {"name": "f", "description": "é", "parameters": {}, "strict": True}},
    ],
)


def _schema(kind: str, **more: Any) -> Message:
    """A parameter with floats in all fields of schemas that take values."""
    values = {
        "default": 1e22,
        "enum": [1e-7, 1e300],
        "const": 1e16,
        "examples": [2e16],
        "minimum": 1e-7,
        "maximum": 1e22,
    }
    return {"type": kind, "description": "d", **values, **more}


_KINDS: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_ODD_SCHEMAS: Final = {kind: _schema(kind) for kind in _KINDS}
_OTHER_TOOLS: Final[list[Message]] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}
    for name, parameters in (
        ("flat", {"type": "object", "properties": _ODD_SCHEMAS, "required": ["number"]}),
        ("deep", {"type": "object", "properties": {"o": _schema("object", properties=_ODD_SCHEMAS)}}),
        ("lists", {"type": "object", "properties": {k: _schema("array", items=_schema(k)) for k in _KINDS}}),
        ("either", {"type": "object", "properties": {"e": _schema("string", anyOf=[_schema(k) for k in _KINDS])}}),
        ("loose", {"type": "object", "properties": {"x": {"enum": [1e22]}, "y": {"default": 1e22}, "z": 1e22}}),
    )
]
_USER: Final = {"role": "user", "content": "hi"}
_SYSTEM: Final = {"role": "system", "content": "Be brief."}
_RESULT: Final = {"role": "tool", "tool_call_id": "call_0", "name": "weather", "content": '{"x": 1}'}
_DOCUMENTS: Final = [{"title": "One", "text": "First.\n"}, {"title": "é", "text": ""}]
_VARIABLES: Final[tuple[Message, ...]] = (
    {},
    {"enable_thinking": False, "thinking": False, "reasoning_effort": "low", "date_string": "26 Jul 2024"},
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "documents": _DOCUMENTS},
)
_SETTINGS: Final = (*((variables, True) for variables in _VARIABLES), (_VARIABLES[0], False))
"""Variables, and `add_generation_prompt`."""


def probes(content_format: ContentFormat) -> Iterator[tuple[Agreement, Message]]:
    """Variables to render with, without the special tokens, and which of their values are not plain."""
    for beyond_plain, tools_given, messages in _conversations():
        rebuilt = with_reasoning_names(conversation(messages, content_format, takes_developer=True).messages)
        for tools, (variables, generation) in product(tools_given, _SETTINGS):
            yield (
                beyond_plain,
                {
                    "documents": None,
                    **variables,
                    "messages": rebuilt,
                    "tools": tools,
                    "add_generation_prompt": generation,
                },
            )


def _conversations() -> Iterator[tuple[Agreement, Sequence[list[Message] | None], list[Message]]]:
    """Which values are not plain, the tools to render with one after the other, and the messages."""
    for messages in _texts():
        yield Agreement.PLAIN, _TOOLS[:1], messages
    for messages in _talks():
        yield Agreement.PLAIN, _TOOLS, messages
    for arguments in (_PLAIN_ARGUMENTS, _OTHER_ARGUMENTS):
        beyond_plain = Agreement.PLAIN if arguments is _PLAIN_ARGUMENTS else Agreement.CALLS
        for messages in _talks_with_calls([_call(number, each) for number, each in enumerate(arguments)]):
            yield beyond_plain, _TOOLS, messages
    odd_tools = [[tool] for tool in _OTHER_TOOLS]
    yield Agreement.TOOLS, odd_tools, [_USER]
    yield Agreement.TOOLS, odd_tools, [_SYSTEM, _USER]


def _texts() -> Iterator[list[Message]]:
    for text in _TEXTS:
        yield [{"role": "system", "content": text}, {"role": "user", "content": text, "name": "Zoë"}]
        yield [_USER, {"role": "assistant", "content": text}, {"role": "user", "content": text}]
        yield [_USER, {"role": "assistant", "content": "a", "reasoning": text}, _USER]
        yield [_USER, {"role": "assistant", "content": text, "reasoning": text}]


def _talks() -> Iterator[list[Message]]:
    yield [_USER]
    yield [_SYSTEM, _USER]
    yield [_SYSTEM]
    yield [{"role": "developer", "content": "Be kind."}, _USER]
    yield [_USER, {"role": "wizard", "content": "x"}]
    yield [_USER, _USER, {"role": "system", "content": "late"}, _USER]
    yield [_USER, {"role": "assistant", "content": None}, {"role": "assistant", "content": "again"}]
    yield [_RESULT]


def _talks_with_calls(calls: list[Message]) -> Iterator[list[Message]]:
    asked = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning": "think\n"}
    yield [_USER, asked]
    yield [_SYSTEM, _USER, asked, _RESULT, {**_RESULT, "content": "two\n"}, {**_RESULT, "content": ""}]
    yield [_USER, {**asked, "content": "Let me see.\n"}, _RESULT, {"role": "assistant", "content": "Done."}, _USER]
    for call in calls:
        yield [_USER, {"role": "assistant", "content": "", "tool_calls": [call]}, _RESULT]
        yield [_USER, {"role": "assistant", "content": "so", "tool_calls": [call]}, _RESULT, _USER]


def _call(number: int, arguments: dict[str, Any]) -> Message:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "weather", "arguments": arguments}}
