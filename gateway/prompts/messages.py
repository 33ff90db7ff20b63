"""`POST /v1/messages` of Anthropic: content blocks become the chat that vLLM makes from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.prompts.chat import chat_messages, template_variables
from gateway.prompts.prompt_input import Chat, MalformedError, Unkeyed
from gateway.prompts.tools import message_tools

_BILLING: Final = "x-anthropic-billing-header"
"""First text of a block by Claude Code that differs in each request. Engines leave the block out."""


def message_prompt(fields: Mapping[str, Any]) -> Chat | Unkeyed:
    """Raises MalformedError."""
    given = chat_messages(fields.get("messages"))
    if any(message.get("role") == "system" for message in given):
        # Engines, their versions and templates put these messages in different places.
        return Unkeyed("inline_system")
    config = fields.get("output_config")
    effort = config.get("effort") if isinstance(config, dict) else None
    variables = template_variables(fields.get("chat_template_kwargs"), effort)
    if variables is None:
        return Unkeyed("template")
    messages: list[dict[str, Any]] = []
    if system := _system(fields.get("system")):
        messages.append({"role": "system", "content": system})
    for message in given:
        _add_message(messages, message)
    if not messages:
        raise MalformedError("messages")
    return Chat(messages, message_tools(fields.get("tools")), variables=variables)


def _system(system: object) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return "".join(text for block in _blocks(system) if (text := _text(block)) and not text.startswith(_BILLING))


def _add_message(messages: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise MalformedError("messages")
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    turn = _Turn()
    for block in _blocks(content):
        if role == "user" and block.get("type") == "tool_result":
            _add_result(messages, block)
        else:
            turn.add(block)
    made = {"role": role, **turn.fields()}
    if role == "assistant" or "content" in made:
        messages.append(made)


@dataclass(slots=True)
class _Turn:
    """The fields of the chat message that one message's blocks make."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def add(self, block: Mapping[str, Any]) -> None:
        match block.get("type"):
            case "text":
                if text := _text(block):
                    self.parts.append({"type": "text", "text": text})
            case "image":
                self.parts.append(_image(block.get("source")))
            case "thinking":
                self.thoughts.append(_string(block.get("thinking")))
            case "tool_use":
                self.calls.append(_call(block))
            case "redacted_thinking" | "tool_reference":
                pass
            case _:
                raise MalformedError("messages")

    def fields(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if self.thoughts:
            made["reasoning"] = "".join(self.thoughts)
        if self.calls:
            made["tool_calls"] = self.calls
        if self.parts:
            one_text = len(self.parts) == 1 and self.parts[0]["type"] == "text"
            made["content"] = self.parts[0]["text"] if one_text else self.parts
        return made


def _add_result(messages: list[dict[str, Any]], block: Mapping[str, Any]) -> None:
    """A tool's result: a `tool` message, and a `user` message with its images."""
    content = block.get("content")
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    references: list[dict[str, Any]] = []
    if isinstance(content, str):
        texts.append(content)
    elif content is not None:
        for item in _blocks(content):
            match item.get("type"):
                case "text":
                    texts.append(_text(item))
                case "image":
                    images.append(_image(item.get("source")))
                case "tool_reference" if name := item.get("tool_name") or item.get("name"):
                    references.append({"type": "tool_reference", "name": name})
    tool = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    messages.append({**tool, "content": "\n".join(texts)})
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append({**tool, "content": references})


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {})
    function = {"name": block.get("name") or "", "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _image(source: object) -> dict[str, Any]:
    if not isinstance(source, dict):
        raise MalformedError("messages")
    if source.get("type") == "url":
        url = _string(source.get("url"))
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{_string(source.get('data'))}"
    return {"type": "image_url", "image_url": {"url": url}}


def _blocks(content: object) -> list[Mapping[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise MalformedError("messages")
    return content


def _text(block: Mapping[str, Any]) -> str:
    return _string(block.get("text")) if block.get("type") == "text" else ""


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise MalformedError("messages")
    return value
