"""`POST /v1/chat/completions`: the fields that make the prompt, read as vLLM reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.prompts.prompt_input import Chat, Completion, Handling, MalformedError, Unkeyed, flag, handling
from warmroute.chat_template.conversation import TEXT_FIELDS
from warmroute.chat_template.tools import declared_tools

_RENDERING: Final = frozenset(
    {
        "chat_template",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names in `chat_template_kwargs` that are not variables: the engine acts on them, or refuses them."""
_UNSET: Final = (None, "auto")
_TEXT_PARTS: Final = (*TEXT_FIELDS, "tool_reference")


def chat_prompt(fields: Mapping[str, Any]) -> Chat | Completion | Unkeyed:
    """A chat, or the token ids of `kv_transfer_params`. Raises MalformedError."""
    messages = chat_messages(fields.get("messages"))
    if fields.get("chat_template") is not None:
        return Unkeyed("template")  # an engine uses it only with --trust-request-chat-template
    transfer = fields.get("kv_transfer_params")
    ids = transfer.get("prompt_token_ids") if isinstance(transfer, dict) else None
    if ids and not _has_media(messages):
        if not isinstance(ids, list):
            raise MalformedError("kv_transfer_params")
        return Completion([ids], Handling(add_special_tokens=False))
    continued = flag(fields, "continue_final_message", False)
    generation = flag(fields, "add_generation_prompt", True)
    if continued and generation:
        raise MalformedError("continue_final_message")
    variables = template_variables(fields.get("chat_template_kwargs"), fields.get("reasoning_effort"))
    if variables is None:
        return Unkeyed("template")
    documents = fields.get("documents")
    if documents is not None:
        if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
            raise MalformedError("documents")
        variables["documents"] = documents
    tools = fields.get("tools")
    return Chat(
        messages,
        None if tools is None else declared_tools(tools),
        generation,
        continued,
        variables,
        handling(fields, add_special_tokens=False),
    )


def chat_messages(messages: object) -> list[Mapping[str, Any]]:
    """`messages` of a body: a list of at least one object. Raises MalformedError."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise MalformedError("messages")
    return messages


def template_variables(given: object, effort: object) -> dict[str, Any] | None:
    """Template variables of `chat_template_kwargs` and the reasoning effort; None with a name of `_RENDERING`.

    Raises MalformedError.
    """
    if given is not None and not isinstance(given, dict):
        raise MalformedError("chat_template_kwargs")
    variables = {name: value for name, value in (given or {}).items() if value not in _UNSET}
    if not _RENDERING.isdisjoint(variables):
        return None
    for name in ("add_generation_prompt", "continue_final_message"):
        variables.pop(name, None)  # the body's own fields of these names have priority
    if effort not in _UNSET:
        if not isinstance(effort, str):
            raise MalformedError("reasoning_effort")
        variables["reasoning_effort"] = effort
        # Some templates turn thinking on only by this variable.
        if "enable_thinking" not in (given or {}):
            variables["enable_thinking"] = effort != "none"
    return variables


def _has_media(messages: list[Mapping[str, Any]]) -> bool:
    contents = [content for message in messages if isinstance(content := message.get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    return any(part.get("type", "text") not in _TEXT_PARTS for part in parts)
