"""What a request's prompt is made of, as far as keys need to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Unkeyed:
    """Why a prompt has no keys: the request is routed by load and the engine judges the rest.

    `tokens` is an estimate of the prompt's length, 0 where nothing is known.
    """

    reason: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a prompt the engine keeps, and whether those on its left or its right side are cut off."""

    tokens: int
    side: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class Handling:
    """How the engine makes token ids of a text."""

    add_special_tokens: bool
    """Whether it adds the model's own special tokens, such as a BOS, around the text."""
    truncation: Truncation | None = None
    exact: bool = True
    """False where the engine cuts a prompt that is too long for the model: how long that is, is not known here."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The parts of a chat that make its prompt."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    """For the template: `chat_template_kwargs`, `documents` and what else the API derives."""
    handling: Handling = Handling(add_special_tokens=False)
    typed_calls: bool = True
    """See `warmroute.chat_template.conversation.conversation`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Texts or token ids, all to be completed at once."""

    prompts: Sequence[str | list[int]]
    handling: Handling = Handling(add_special_tokens=True)


Request = Chat | Completion


class MalformedError(Exception):
    """A field has a shape that engines refuse."""


def flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """A field that is true or false. Raises MalformedError."""
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
