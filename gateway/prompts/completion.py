"""`POST /v1/completions`: texts or token ids, one or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.prompts.prompt_input import Completion, MalformedError, Unkeyed, handling


def completion_prompt(fields: Mapping[str, Any]) -> Completion | Unkeyed:
    """Raises MalformedError. Single token ids are checked later, when they are packed: there may be millions."""
    if fields.get("prompt_embeds") is not None:
        return Unkeyed("embeds")
    handled = handling(fields, add_special_tokens=True)
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return Completion([prompt], handled)
    if not isinstance(prompt, list) or not prompt:
        raise MalformedError("prompt")
    first = prompt[0]
    if isinstance(first, str) and all(isinstance(each, str) for each in prompt):
        return Completion(prompt, handled)
    if isinstance(first, list) and all(isinstance(each, list) for each in prompt):
        return Completion(prompt, handled)
    if isinstance(first, int):
        return Completion([prompt], handled)
    raise MalformedError("prompt")
