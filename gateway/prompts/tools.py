"""Converts the tools of the Responses and Messages APIs to those of a chat."""

from __future__ import annotations

from typing import Any

from gateway.prompts.prompt_input import MalformedError
from warmroute.chat_template.tools import declared_function


def response_tools(tools: object) -> list[dict[str, Any]] | None:
    """The functions among a response's `tools`. Raises ConversationError, and MalformedError, also for a namespace."""
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise MalformedError("tools")
    if any(tool.get("type") == "namespace" for tool in tools):
        raise MalformedError("tools")
    return [declared_function(tool) for tool in tools if tool.get("type") == "function"]


def message_tools(tools: object) -> list[dict[str, Any]] | None:
    """`tools` of Anthropic's Messages. Raises ConversationError, and MalformedError, also for tools that run on
    Anthropic's servers."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise MalformedError("tools")
    declared = []
    for tool in tools:
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict):
            raise MalformedError("tools")
        parameters = schema if "type" in schema else {**schema, "type": "object"}
        declared.append(declared_function({**tool, "parameters": parameters, "strict": None}))
    return declared
