"""What routing needs of a request's body. The body itself passes through untouched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

MEDIA_PARTS = frozenset({"image_url", "input_audio", "video_url", "audio_url", "file", "image", "audio", "video"})


class BadRequestError(Exception):
    """The request can be served by no worker; `param` names the field."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Chat:
    """The parts of a chat that make its prompt."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    template_variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoutedBody:
    """One request. `prompt` is a chat, a text, token ids, or a reason why it cannot be keyed (`Unkeyed`). `size` is
    the body's, in bytes: what a prompt costs grows with it."""

    model: str
    salt: str
    prompt: Chat | str | list[int] | Unkeyed
    size: int
    adapter: str = ""
    """The LoRA adapter as the engine names it; "" for the base model."""


@dataclass(frozen=True, slots=True)
class Unkeyed:
    """Why a prompt has no keys: the request is routed by load and the engine judges the rest.

    `tokens` is an estimate of the prompt's length, 0 where nothing is known.
    """

    reason: str
    tokens: int = 0


def parse_body(body: bytes, *, chat: bool) -> RoutedBody:
    """`parse_object` and `routed_body` in one."""
    return routed_body(parse_object(body), len(body), chat=chat)


def parse_object(body: bytes) -> dict[str, Any]:
    """The body's fields; raises BadRequestError where it is no JSON object."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the request body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRequestError("the request body must be a JSON object")
    return fields


def model_name(fields: Mapping[str, Any]) -> str:
    """The model that a body names; raises BadRequestError where that is no name."""
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequestError("'model' must be the name of a model, as a string", param="model")
    return model


def routed_body(fields: Mapping[str, Any], size: int, *, chat: bool) -> RoutedBody:
    """Read the fields that matter to routing of a body of `size` bytes.

    Raises BadRequestError where no worker could serve the request. Anything that is odd but for the model's name is
    left to the engine to refuse, in its own words.
    """
    model = model_name(fields)
    salt = fields.get("cache_salt")
    prompt = _chat(fields) if chat else _completion(fields)
    if salt is not None and not isinstance(salt, str):
        prompt, salt = Unkeyed("malformed"), None
    return RoutedBody(model, salt or "", prompt, size)


def _chat(fields: Mapping[str, Any]) -> Chat | Unkeyed:
    messages, tools = fields.get("messages"), fields.get("tools")
    variables = fields.get("chat_template_kwargs") or {}
    if not (
        isinstance(messages, list)
        and messages
        and all(isinstance(message, dict) for message in messages)
        and (tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)))
        and isinstance(variables, dict)
    ):
        return Unkeyed("malformed")
    if fields.get("chat_template") is not None or fields.get("continue_final_message"):
        return Unkeyed("template")
    texts: list[Mapping[str, Any]] = []
    for message in messages:
        text = _text_message(message)
        if isinstance(text, Unkeyed):
            return text
        texts.append(text)
    generation = fields.get("add_generation_prompt", True)
    return Chat(texts, tools or None, generation is not False, variables)


def _text_message(message: Mapping[str, Any]) -> Mapping[str, Any] | Unkeyed:
    """The message with its text parts joined, as engines hand them to templates that take strings."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list):
        return Unkeyed("malformed")
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict):
            return Unkeyed("malformed")
        kind = part.get("type")
        if isinstance(kind, str) and kind in MEDIA_PARTS:
            return Unkeyed("media")
        text = part.get("text")
        if not isinstance(text, str):
            return Unkeyed("malformed")
        texts.append(text)
    return {**message, "content": "\n".join(texts)}


def _completion(fields: Mapping[str, Any]) -> str | list[int] | Unkeyed:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt:
        first = prompt[0]
        if isinstance(first, str) and len(prompt) == 1:
            return first
        if isinstance(first, str | list):
            return Unkeyed("several_prompts")
        # Whether all of millions are token ids is found out when they are packed.
        return prompt
    return Unkeyed("malformed")
