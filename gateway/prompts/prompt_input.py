"""What a prompt is made from: a chat, or texts and token ids, and how the engine tokenizes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Unkeyed:
    """Why a prompt has no keys. Its request is routed by load.

    `tokens`: an estimate of the prompt's length; 0 where it is not known.
    """

    reason: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Truncation:
    """The engine keeps `tokens` tokens of a prompt and cuts the others off on its left or right `side`."""

    tokens: int
    side: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class Handling:
    """How the engine tokenizes a text."""

    add_special_tokens: bool
    """Whether it adds the model's own special tokens, such as a BOS, around the text."""
    truncation: Truncation | None = None
    exact: bool = True
    """False where the engine cuts a prompt to the model's context length, which the gateway does not know."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The parts of a chat that make its prompt."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Template variables: `chat_template_kwargs`, `documents` and what the API derives from other fields."""
    handling: Handling = Handling(add_special_tokens=False)
    typed_calls: bool = True
    """See `warmroute.chat_template.conversation.conversation`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One prompt or several, each a text or token ids."""

    prompts: Sequence[str | list[int]]
    handling: Handling = Handling(add_special_tokens=True)


PromptInput = Chat | Completion


class MalformedError(Exception):
    """A field has a shape that engines refuse."""


def flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """A boolean field. Raises MalformedError where it is anything else."""
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise MalformedError(name)
    return value


def handling(fields: Mapping[str, Any], *, add_special_tokens: bool) -> Handling:
    """`add_special_tokens`, `truncate_prompt_tokens` and `truncation_side` of a body. Raises MalformedError."""
    special = flag(fields, "add_special_tokens", add_special_tokens)
    tokens = fields.get("truncate_prompt_tokens")
    if tokens is None:
        return Handling(special)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < -1:
        raise MalformedError("truncate_prompt_tokens")
    if tokens == -1:
        return Handling(special, exact=False)
    match fields.get("truncation_side"):
        case "left" | None:
            return Handling(special, Truncation(tokens))
        case "right":
            return Handling(special, Truncation(tokens, "right"))
        case _:
            raise MalformedError("truncation_side")
