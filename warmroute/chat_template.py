"""Chat templates, rendered as Hugging Face `transformers` renders them.

The built-in engine and the gateway both render with this module; each loads its own copy of the model's files. The
environment (immutable sandbox, trimmed blocks, loop controls, `tojson`, `raise_exception`, `strftime_now`) follows the
documentation of chat templates in `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(ValueError):
    """The template is missing, malformed, or refused the messages; the message says which."""


class ChatTemplate:
    """One compiled chat template with the special tokens it may name."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda fmt: now().strftime(fmt)
        self.special_tokens = dict(special_tokens or {})
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error

    @classmethod
    def from_folder(cls, folder: Path, *, now: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """Read `chat_template.jinja`, or `chat_template` of `tokenizer_config.json`, from a model's folder.

        Raises ChatTemplateError where neither is there or a file is malformed.
        """
        config = _read_tokenizer_config(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        try:
            source = file.read_text("utf-8") if file.is_file() else _default_template(config.get("chat_template"))
        except (OSError, UnicodeDecodeError) as error:
            raise ChatTemplateError(f"{file} cannot be read as UTF-8: {error}") from error
        if source is None:
            raise ChatTemplateError(f"{folder} has no chat template (chat_template.jinja or tokenizer_config.json)")
        return cls(source, _special_tokens(config), now=now)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. `variables` are the request's `chat_template_kwargs`; they cannot replace the others.

        Raises ChatTemplateError where the template refuses the messages or cannot cope with them.
        """
        try:
            return self._template.render(
                {
                    **self.special_tokens,
                    "documents": None,
                    **(variables or {}),
                    "messages": messages,
                    "tools": tools,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError("the messages are nested too deeply for the chat template") from error


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChatTemplateError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ChatTemplateError(f"{path} holds no JSON object")
    return config


def _default_template(value: object) -> str | None:
    """A template is a string, or a list of named ones of which `default` serves plain chats."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        default = named.get("default")
        return default if isinstance(default, str) else None
    return None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like: a string, or an object with the string in `content`."""
    tokens: dict[str, str] = {}
    for name, value in config.items():
        if name.endswith("_token"):
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                tokens[name] = content
    return tokens


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`json.dumps` without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
