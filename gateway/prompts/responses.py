"""`POST /v1/responses`: input items become the chat that vLLM makes from them.

Several items can make one message: reasoning, text and calls of one assistant turn are in one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.prompts.chat import template_variables
from gateway.prompts.prompt_input import Chat, Handling, MalformedError, Unkeyed
from gateway.prompts.tools import response_tools

_UNFINISHED: Final = ("in_progress", "incomplete")
_STORED: Final = ("previous_response_id", "previous_input_messages", "previous_response", "prompt", "conversation")
"""Fields that refer to data that only the worker of an earlier response has."""


def response_prompt(fields: Mapping[str, Any]) -> Chat | Unkeyed:
    """Raises MalformedError."""
    if any(fields.get(name) for name in _STORED):
        return Unkeyed("stored")
    reasoning = fields.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    variables = template_variables(fields.get("chat_template_kwargs"), effort)
    if variables is None:
        return Unkeyed("template")
    messages: list[dict[str, Any]] = []
    instructions = fields.get("instructions")
    if instructions:
        if not isinstance(instructions, str):
            raise MalformedError("instructions")
        messages.append({"role": "system", "content": instructions})
    continued = False
    match fields.get("input"):
        case str() as text:
            messages.append({"role": "user", "content": text})
        case [*items]:
            for item in items:
                if not _add_item(messages, item):
                    return Unkeyed("items")
            continued = _is_unfinished(items)
        case _:
            raise MalformedError("input")
    if not messages:
        raise MalformedError("input")
    return Chat(
        messages,
        response_tools(fields.get("tools")),
        not continued,
        continued,
        variables,
        # `truncation: auto` cuts a prompt that is too long for the model.
        Handling(add_special_tokens=False, exact=fields.get("truncation") != "auto"),
        typed_calls=False,
    )


def _add_item(messages: list[dict[str, Any]], item: object) -> bool:
    """Add an item as a message, or to the assistant's message before it. False for items of unknown kinds."""
    if not isinstance(item, dict):
        raise MalformedError("input")
    match item.get("type", "message"):
        case "function_call":
            _add_call(messages, item)
        case "function_call_output":
            messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
        case "reasoning":
            if item.get("encrypted_content"):
                return False
            _add_to_assistant(messages, "reasoning", _first_text(item.get("content") or item.get("summary")))
        case "message" if item.get("role") == "assistant":
            _add_to_assistant(messages, "content", _first_text(item.get("content")))
        case "message":
            messages.append(item)
        case _:
            return False
    return True


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    name, arguments, call_id = (item.get(field) for field in ("name", "arguments", "call_id"))
    if not isinstance(name, str) or not isinstance(arguments, str) or item.get("namespace"):
        raise MalformedError("input")
    call = {"id": call_id, "function": {"name": name, "arguments": arguments}, "type": "function"}
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        last.setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "tool_calls": [call]})


def _add_to_assistant(messages: list[dict[str, Any]], field: str, text: str) -> None:
    """Add to the last message, where it is the assistant's and lacks this field; else add a message."""
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and last.get(field) is None:
        last[field] = text
    else:
        messages.append({"role": "assistant", field: text})


def _first_text(content: object) -> str:
    """The string, or the text of a list's first part: engines read no other part of the assistant's messages."""
    if isinstance(content, list) and content:
        content = content[0].get("text", "") if isinstance(content[0], dict) else content[0]
    if content is None or content == []:
        return ""
    if not isinstance(content, str):
        raise MalformedError("input")
    return content


def _is_unfinished(items: list[Any]) -> bool:
    """Whether the last item is an unfinished reply that the model continues."""
    last = items[-1] if items else {}
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in _UNFINISHED
