"""A model's chat templates: chooses one for a request and renders it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from warmroute.chat_template import files as template_files
from warmroute.chat_template.compiled import CompiledTemplate, Findings, Rendering
from warmroute.chat_template.conversation import Conversation, MediaTexts, conversation, with_reasoning_names
from warmroute.chat_template.environment import ChatTemplateError
from warmroute.chat_template.files import DEFAULT, PROCESSOR, TOOL_USE, Files

_CONTINUE_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to be continued while it is rendered. Its last blank shows whether the template trims
texts. Source: `transformers`, `render_jinja_template`."""
_RESERVED: Final = frozenset({"messages", "tools", "add_generation_prompt"})
"""Variables that a request cannot replace."""
_NO_MEDIA: Final = MediaTexts()


class ChatTemplate:
    """The compiled templates of one model, with its special tokens."""

    def __init__(
        self,
        source: str | Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
        found: Mapping[str, Findings] | None = None,
    ) -> None:
        """`source`: the template, or several by name; `found`: what is known of each already.

        Raises ChatTemplateError where one does not compile.
        """
        tokens = dict(special_tokens or {})
        named = {DEFAULT: source} if isinstance(source, str) else source
        used = template_files.used(named)
        if not used:
            raise ChatTemplateError("there is no template for plain chats among the named ones")
        known = found or {}
        self._take(tokens, {name: CompiledTemplate(each, tokens, now, known.get(name)) for name, each in used.items()})

    @classmethod
    def elsewhere(cls, renderings: Mapping[str, Rendering], special_tokens: Mapping[str, str]) -> ChatTemplate:
        """Templates that another process renders."""
        template = cls.__new__(cls)
        template._take(special_tokens, renderings)  # noqa: SLF001  its own class
        return template

    def _take(self, special_tokens: Mapping[str, str], renderings: Mapping[str, Rendering]) -> None:
        self.special_tokens = dict(special_tokens)
        self._compiled = dict(renderings)

    @classmethod
    def from_folder(cls, folder: Path, *, now: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """Read the templates of a model's folder. Raises ChatTemplateError where there is none or a file is
        malformed."""
        try:
            return cls.from_files(template_files.read_folder(folder), now=now)
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{folder}: {error}") from error

    @classmethod
    def from_files(cls, files: Files, *, now: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """`files`: contents by name (`chat_template.jinja` and others). Raises ChatTemplateError."""
        return cls(template_files.templates(files), template_files.special_tokens(files), now=now)

    @property
    def findings(self) -> dict[str, Findings]:
        """What is known of each template, by its name."""
        return {name: each.findings for name, each in self._compiled.items() if isinstance(each, CompiledTemplate)}

    def named(self, name: str) -> Rendering:
        """One template. Raises KeyError."""
        return self._compiled[name]

    def serving(self, tools: Sequence[Mapping[str, Any]] | None) -> Rendering:
        """The template for a chat with these tools. Raises ChatTemplateError where there is none."""
        order = (PROCESSOR, DEFAULT) if tools is None else (TOOL_USE, DEFAULT)
        for name in order:
            if (compiled := self._compiled.get(name)) is not None:
                return compiled
        chats = "chats without tools" if tools is None else "chats with tools"
        raise ChatTemplateError(f"the model has no chat template for {chats}")

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        typed_calls: bool = True,
        media: MediaTexts = _NO_MEDIA,
    ) -> Conversation:
        """A request's messages as vLLM passes them to the template. Raises ChatTemplateError, ConversationError."""
        compiled = self.serving(tools)
        return conversation(
            messages,
            compiled.content_format,
            takes_developer=compiled.takes_developer,
            typed_calls=typed_calls,
            media=media,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, as `transformers` renders these messages.

        `variables` are the request's `chat_template_kwargs` and `documents`; they cannot replace the other arguments.
        Raises ChatTemplateError where the template refuses the messages or fails.
        """
        compiled = self.serving(tools)
        chat = with_reasoning_names(messages)
        final = _tag_final(chat) if continue_final_message else ""
        text = compiled.render(
            {
                **self.special_tokens,
                "documents": None,
                **{name: value for name, value in (variables or {}).items() if name not in _RESERVED},
                "messages": chat,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return _cut_at_tag(text, final) if continue_final_message else text


def _tag_final(chat: list[dict[str, Any]]) -> str:
    """Append the tag to the last message's text; returns the text without it. Raises ChatTemplateError."""
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUE_TAG
        return content
    if isinstance(content, list):
        for place in reversed(range(len(content))):
            part = content[place]
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                tagged = {**part, "text": part["text"] + _CONTINUE_TAG}
                chat[-1]["content"] = [*content[:place], tagged, *content[place + 1 :]]
                text: str = part["text"]
                return text
    raise ChatTemplateError("the final message has no text to continue")


def _cut_at_tag(text: str, final: str) -> str:
    place = text.rfind(_CONTINUE_TAG.strip())
    if place < 0 or final.strip() not in text:
        raise ChatTemplateError("the chat template leaves out the end of the final message, which is to be continued")
    trimmed = not text.startswith(_CONTINUE_TAG, place)
    return text[:place].rstrip() if trimmed else text[:place]
