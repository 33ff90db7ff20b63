"""Reads chat templates and special tokens from the files of a model's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from warmroute.chat_template.environment import ChatTemplateError

CONFIG: Final = "tokenizer_config.json"
TEMPLATE: Final = "chat_template.jinja"
PROCESSOR_TEMPLATE: Final = "chat_template.json"
TOKENS: Final = "special_tokens_map.json"
MODEL: Final = "config.json"
ADDITIONAL: Final = "additional_chat_templates"
DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"
PROCESSOR: Final = "processor"
"""Our name for the template of `chat_template.json`. Engines use it for chats without tools."""
_FILE_LIMIT: Final = 16
"""Named templates that are read: more than any model has."""
CODED_MODELS: Final = frozenset({"gpt_oss", "deepseek_v32", "deepseek_v4", "kimi_k3"})
"""Values of `model_type` for which vLLM writes chats by code, not by a template."""


class MissingTemplateError(ChatTemplateError):
    """The model has none, which is nobody's fault."""


Files = Mapping[str, bytes]
"""Contents by path relative to the model's folder."""


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files with templates and tokens that exist. Raises ChatTemplateError where one cannot be read."""
    paths = [folder / name for name in (CONFIG, TEMPLATE, PROCESSOR_TEMPLATE, TOKENS, MODEL)]
    paths += sorted((folder / ADDITIONAL).glob("*.jinja"))[:_FILE_LIMIT]
    files: dict[str, bytes] = {}
    for path in paths:
        try:
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ChatTemplateError(f"{path} cannot be read: {error.strerror}") from error
    return files


def templates(files: Files) -> dict[str, str]:
    """Sources by name: `default`, `tool_use`, `processor` and others.

    Raises ChatTemplateError where no template serves plain chats, where a file is malformed, and where engines write
    this model's chats without a template.
    """
    kind = _object(files, MODEL).get("model_type")
    if isinstance(kind, str) and kind in CODED_MODELS:
        raise MissingTemplateError(f"engines write the chats of {kind} models by code of their own, not by a template")
    named = _configured(_object(files, CONFIG).get("chat_template"))
    if TEMPLATE in files:
        named = {DEFAULT: _text(files, TEMPLATE)}
    for name in files:
        if name.startswith(f"{ADDITIONAL}/"):
            named[name.removeprefix(f"{ADDITIONAL}/").removesuffix(".jinja")] = _text(files, name)
    processor = _object(files, PROCESSOR_TEMPLATE).get("chat_template")
    if isinstance(processor, str) and TEMPLATE not in files:
        named[PROCESSOR] = processor
    if DEFAULT not in named and PROCESSOR not in named:
        raise MissingTemplateError(f"the model has no chat template ({TEMPLATE}, or chat_template in {CONFIG})")
    return named


def used(named: Mapping[str, str]) -> dict[str, str]:
    """Those of the templates that chats are rendered with."""
    return {name: named[name] for name in (DEFAULT, TOOL_USE, PROCESSOR) if name in named}


def special_tokens(files: Files) -> dict[str, str]:
    """The text of `bos_token` and all other fields that end in `_token`, by name. Raises ChatTemplateError."""
    tokens: dict[str, str] = {}
    config = _object(files, CONFIG)
    extra = config.get("extra_special_tokens")
    for source in (_object(files, TOKENS), extra if isinstance(extra, dict) else {}, config):
        for name, value in source.items():
            if name.endswith("_token"):
                content = value.get("content") if isinstance(value, dict) else value
                if isinstance(content, str):
                    tokens[name] = content
    return tokens


def _configured(value: object) -> dict[str, str]:
    """The field is one template's source, or a list of named templates."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if not isinstance(value, list):
        return {}
    items = [item for item in value if isinstance(item, dict)]
    return {
        item["name"]: item["template"]
        for item in items
        if isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
    }


def _object(files: Files, name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(_text(files, name))
    except ValueError as error:
        raise ChatTemplateError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ChatTemplateError(f"{name} holds no JSON object")
    return value


def _text(files: Files, name: str) -> str:
    try:
        return files[name].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ChatTemplateError(f"{name} cannot be read as UTF-8: {error}") from error
