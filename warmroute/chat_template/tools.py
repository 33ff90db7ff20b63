"""Tools as vLLM passes them to templates: only known fields, in the order of its types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warmroute.chat_template.conversation import ConversationError

_OPTIONAL: Final = ("strict", "defer_loading")
"""Fields that are left out where they are null."""


def declared_tools(tools: object) -> list[dict[str, Any]]:
    """`tools` of a chat. Raises ConversationError for shapes that engines refuse."""
    if not isinstance(tools, list):
        raise ConversationError("tools is no list")
    return [_declared_tool(tool) for tool in tools]


def declared_function(function: Mapping[str, Any]) -> dict[str, Any]:
    """One function as a tool. Raises ConversationError."""
    name, description, parameters = (function.get(field) for field in ("name", "description", "parameters"))
    if not isinstance(name, str):
        raise ConversationError("a tool's name is no string")
    if not isinstance(description, str | None):
        raise ConversationError(f"the tool {name[:50]!r} has a description that is no string")
    if not isinstance(parameters, dict | None):
        raise ConversationError(f"the tool {name[:50]!r} has parameters that are no object")
    declared = {"name": name, "description": description, "parameters": parameters}
    declared |= {field: function[field] for field in _OPTIONAL if function.get(field) is not None}
    return {"type": "function", "function": declared}


def _declared_tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        raise ConversationError("a tool is no object with a function")
    function = tool["function"]
    deferred = tool.get("defer_loading")
    if deferred is None:
        return declared_function(function)
    return {**declared_function({"defer_loading": deferred, **function}), "defer_loading": deferred}
