"""Rebuilds messages as vLLM passes them to a chat template.

vLLM rebuilds each message before it renders: content becomes a string or a list of parts, by what the template reads
(`inspection.content_format`); arguments of tool calls become objects; reasoning is set under both of its names; and
fields that no template knows are left out. All of it changes the prompt's text, so the gateway and the built-in engine
both use this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from warmroute.chat_template.environment import ChatTemplateError
from warmroute.chat_template.inspection import ContentFormat

TEXT_FIELDS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The types of text parts, and the field with the text."""
MEDIA_KINDS: Final[Mapping[str, str]] = {
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
"""The types of media parts, and their type in templates."""
_PART_FIELDS: Final = frozenset(
    {*TEXT_FIELDS.values(), *MEDIA_KINDS, "closed", "data", "detail", "file", "name", "tool_reference", "type", "uuid"}
)
"""Fields of parts that are not passed to templates. Unknown fields are."""
_REASONING_NAMES: Final = ("reasoning_content", "thinking", "reasoning")
"""In order of priority."""
_BILLING: Final = "x-anthropic-billing-header"
"""Start of a line by Claude Code that differs in each request. vLLM drops the line from system messages."""


class ConversationError(ChatTemplateError):
    """Messages or tools have a shape that engines refuse."""


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image, audio or video of a message. `part`: as the client sent it."""

    kind: str
    """image, audio or video."""
    part: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for a template, and their media in order."""

    messages: list[dict[str, Any]]
    media: list[MediaPart] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MediaTexts:
    """The texts that replace media.

    `placeholders`: by kind, the engine's text for an item where the template takes strings. `mark`: a text for every
    item instead, in both formats, to find the place of the first one.
    """

    placeholders: Mapping[str, str] = field(default_factory=dict)
    mark: str | None = None


_NO_MEDIA: Final = MediaTexts()


def conversation(
    messages: Sequence[Mapping[str, Any]],
    content_format: ContentFormat,
    *,
    takes_developer: bool,
    typed_calls: bool = True,
    media: MediaTexts = _NO_MEDIA,
) -> Conversation:
    """Rebuild messages for a template. Raises ConversationError for shapes that engines refuse.

    `typed_calls`: whether tool calls are parsed by the types of the chat API, which reorder their fields. Some
    templates print calls with their fields in order.
    """
    found: list[MediaPart] = []
    rebuilt = [_message(message, content_format, typed_calls, media, found) for message in messages]
    if not takes_developer and any(message["role"] == "developer" for message in rebuilt):
        rebuilt = _developers_as_system(rebuilt)
    return Conversation(rebuilt, found)


def with_reasoning_names(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies with reasoning under every name that templates read, and without null fields, as `transformers` does."""
    named = []
    for message in messages:
        made = {name: value for name, value in message.items() if value is not None}
        for name in _REASONING_NAMES:
            if name in made:
                made = {"thinking": made[name], **made, "reasoning_content": made[name]}
                break
        named.append(made)
    return named


def _message(
    message: Mapping[str, Any],
    content_format: ContentFormat,
    typed_calls: bool,
    media: MediaTexts,
    found: list[MediaPart],
) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise ConversationError("a message's role is no string")
    if role == "system" and content:
        content = _without_billing(content)
    rebuilt: dict[str, Any] = {"role": role, "content": _content(content, content_format, media, found)}
    if role == "assistant":
        _add_assistant_fields(rebuilt, message, typed_calls)
    elif role == "tool":
        if "tool_call_id" in message:
            rebuilt["tool_call_id"] = message["tool_call_id"]
        parts = rebuilt["content"]
        if isinstance(parts, list) and all(part["type"] == "text" for part in parts):
            rebuilt["content"] = "\n".join(part["text"] for part in parts)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            rebuilt[name] = message[name]
    if role == "developer":
        rebuilt["tools"] = message.get("tools")
    return rebuilt


def _content(content: object, content_format: ContentFormat, media: MediaTexts, found: list[MediaPart]) -> Any:
    if content is None:
        return [] if content_format == "openai" else ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content_format == "openai" else content
    if not isinstance(content, list):
        raise ConversationError("a message's content is neither a string nor a list")
    first = len(found)
    parts: list[Any] = []
    for part in content:
        rebuilt = _part(part, media.mark if content_format == "openai" else None, found)
        if rebuilt is not None:
            parts.append(rebuilt)
    if content_format == "openai":
        return parts
    # Media first, wherever they are: for string contents engines put missing placeholders in front.
    text = "\n".join(text for part in parts if (text := part.get("text") or part.get("name")))
    return "\n".join([*_placeholders(found[first:], text, media), *([text] if text else [])])


def _part(part: object, mark: str | None, found: list[MediaPart]) -> dict[str, Any] | None:
    """One part in OpenAI's format; None for a text that is null."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise ConversationError("a part of a message's content is neither a string nor an object")
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        kind = next((name for name in (*MEDIA_KINDS, "tool_reference") if name in part), kind)
    if not isinstance(kind, str):
        raise ConversationError("a part's type is no string")
    if (name := TEXT_FIELDS.get(kind)) is not None:
        text = part.get(name)
        if text is None and kind in {"text", "refusal"}:
            return None
        if not isinstance(text, str):
            raise ConversationError(f"a part of the type {kind[:50]} has no text")
        return {"type": "text", "text": text, **_unknown_fields(part)}
    if kind == "tool_reference":
        return {"type": "tool_reference", "name": part.get("name")}
    media_kind = "prompt_embeds" if kind == "prompt_embeds" else MEDIA_KINDS.get(kind)
    if media_kind is None:
        raise ConversationError(f"engines know no parts of the type {kind[:50]!r}")
    found.append(MediaPart(media_kind, part))
    if mark is not None:
        return {"type": "text", "text": mark}
    return {"type": media_kind, **_unknown_fields(part)}


def _unknown_fields(part: Mapping[str, Any]) -> dict[str, Any]:
    if len(part) <= 2:  # type and text
        return {}
    return {name: value for name, value in part.items() if name not in _PART_FIELDS}


def _placeholders(items: Sequence[MediaPart], text: str, media: MediaTexts) -> list[str]:
    """The placeholders that the engine puts in front, for items that have none in the text."""
    if media.mark is not None:
        return [media.mark] if items else []
    wanted: dict[str, int] = {}
    for item in items:
        placeholder = media.placeholders.get(item.kind)
        if placeholder is not None:
            wanted[placeholder] = wanted.get(placeholder, 0) + 1
    return [name for name, count in wanted.items() for _ in range(count - text.count(name))]


def _add_assistant_fields(rebuilt: dict[str, Any], message: Mapping[str, Any], typed_calls: bool) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise ConversationError("tool_calls is no list")
        # An empty list is left out: templates test whether the field exists.
        if calls:
            rebuilt["tool_calls"] = [_tool_call(call, typed_calls) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        rebuilt["reasoning"] = rebuilt["reasoning_content"] = reasoning


def _tool_call(call: object, typed: bool) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise ConversationError("a tool call is no object with a function")
    function = call["function"]
    arguments = _arguments(function.get("arguments"))
    if not typed:
        return {**call, "function": {**function, "arguments": arguments}}
    ordered = {name: call.get(name) for name in ("id", "function", "type")}
    return {**ordered, **call, "function": {"arguments": None, "name": None, **function} | {"arguments": arguments}}


def _arguments(arguments: object) -> Mapping[str, Any]:
    """Arguments as an object; an empty one where they are malformed, so that a broken old call does not end a chat."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return arguments if isinstance(arguments, dict) else {}


def _without_billing(content: Any) -> Any:
    if isinstance(content, str):
        return content.partition("\n")[2] if content.startswith(_BILLING) else content
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str) and text.startswith(_BILLING):
            rest = text.partition("\n")[2]
            if rest:
                parts.append(rest if isinstance(part, str) else {**part, "text": rest})
        else:
            parts.append(part)
    return parts


def _developers_as_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Renames developer messages to system. Unless only the first message is one, all become one in front."""
    renamed = [
        {**{name: value for name, value in message.items() if name != "tools"}, "role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    places = [place for place, message in enumerate(renamed) if message["role"] == "system"]
    if places == [0]:
        return renamed
    texts = [_plain_text(renamed[place]["content"]) for place in places]
    others = [message for message in renamed if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(text for text in texts if text)}, *others]


def _plain_text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)
