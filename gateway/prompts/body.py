"""The fields of a request's body that routing reads. The body itself is not changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

from gateway.http.errors import RequestError
from gateway.prompts.chat import chat_prompt
from gateway.prompts.completion import completion_prompt
from gateway.prompts.media import sent_bytes
from gateway.prompts.messages import message_prompt
from gateway.prompts.prompt_input import Chat, Completion, MalformedError, PromptInput, Unkeyed
from gateway.prompts.responses import response_prompt
from warmroute.chat_template import ConversationError

CHARACTERS_PER_TOKEN: Final = 4
"""For estimates of a prompt's length from its bytes."""
PIECES_LIMIT: Final = 10_000
"""Messages, tools, items or prompts of a body, and parts and tool calls of a chat: more than any context holds. Each
of them costs a few microseconds in several steps."""


class BodyKind(StrEnum):
    """The API that a body belongs to. It decides how the prompt is made."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"
    MESSAGES = "messages"


_READERS: Final[Mapping[BodyKind, Callable[[Mapping[str, Any]], PromptInput | Unkeyed]]] = {
    BodyKind.CHAT: chat_prompt,
    BodyKind.COMPLETION: completion_prompt,
    BodyKind.RESPONSE: response_prompt,
    BodyKind.MESSAGES: message_prompt,
}


class BadRequestError(RequestError):
    """A body that no worker could serve; `param` names the field."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(400, message, None, param)


@dataclass(frozen=True, slots=True)
class RoutedBody:
    """One request, as routing reads it.

    `prompt`: a chat, texts or token ids, or the reason why it has no keys (`Unkeyed`). `size`: the body's, in bytes.
    """

    model: str
    salt: str
    prompt: PromptInput | Unkeyed
    size: int
    adapter: str = ""
    """The LoRA adapter as the engine names it; "" for the base model."""
    media_bytes: int = 0
    """The bytes of `size` that are images, audio or video, not text."""

    @property
    def estimated_tokens(self) -> int:
        """The prompt's length in tokens, estimated from its bytes."""
        return max(self.size - self.media_bytes, 0) // CHARACTERS_PER_TOKEN


def parse_body(body: bytes, kind: BodyKind) -> RoutedBody:
    """`parse_object`, then `routed_body`. Raises BadRequestError."""
    return routed_body(parse_object(body), len(body), kind)


def parse_object(body: bytes) -> dict[str, Any]:
    """The body's fields. Raises BadRequestError where it is not a JSON object."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the request body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRequestError("the request body must be a JSON object")
    return fields


def model_name(fields: Mapping[str, Any]) -> str:
    """The value of `model`. Raises BadRequestError where it is not a string, or empty."""
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequestError("'model' must be the name of a model, as a string", param="model")
    return model


def routed_body(fields: Mapping[str, Any], size: int, kind: BodyKind) -> RoutedBody:
    """Read the fields that routing needs. `size`: the body's, in bytes.

    Raises BadRequestError where the model's name is missing. All other wrong fields are left to the engine, which
    refuses them with its own message.
    """
    model = model_name(fields)
    salt = fields.get("cache_salt")
    prompt: PromptInput | Unkeyed
    try:
        prompt = Unkeyed("too_long") if _has_too_many(fields) else _READERS[kind](fields)
    except (MalformedError, ConversationError, RecursionError):
        prompt = Unkeyed("malformed")
    if salt is not None and not isinstance(salt, str):
        prompt, salt = Unkeyed("malformed"), None
    if isinstance(prompt, Unkeyed) and prompt.reason != "malformed":
        prompt = Unkeyed(prompt.reason, size // CHARACTERS_PER_TOKEN)
    return RoutedBody(model, salt or "", prompt, size, media_bytes=_media_bytes(prompt))


def _has_too_many(fields: Mapping[str, Any]) -> bool:
    for name in ("messages", "tools", "documents", "input", "prompt"):
        value = fields.get(name)
        if isinstance(value, list) and len(value) > PIECES_LIMIT and not isinstance(value[0], int):  # a token id
            return True
    return False


def _media_bytes(prompt: PromptInput | Unkeyed) -> int:
    if not isinstance(prompt, Chat):
        return 0
    contents = [content for message in prompt.messages if isinstance(content := message.get("content"), list)]
    return sum(sent_bytes(part) for content in contents for part in content if isinstance(part, dict))


__all__ = [
    "BadRequestError",
    "BodyKind",
    "Chat",
    "Completion",
    "RoutedBody",
    "Unkeyed",
    "model_name",
    "parse_body",
    "parse_object",
    "routed_body",
]
