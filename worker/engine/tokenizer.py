"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from warmroute.chat_template import ChatTemplate, ChatTemplateError
from worker.engine.errors import ModelError

REPLACEMENT = "\ufffd"
MAX_WINDOW_TOKENS = 64
"""Tokens that undecodable bytes are held back for. A UTF-8 sequence has four bytes, so more is not text."""


class EngineTokenizer:
    """The model's tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | ChatTemplateError) -> None:
        self._tokenizer = tokenizer
        self._template = template
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @classmethod
    def from_folder(cls, folder: Path) -> EngineTokenizer:
        """Read `tokenizer.json` and the chat template. A model without a template still completes plain prompts.

        Raises ModelError where the tokenizer cannot be read.
        """
        path = folder / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the binding raises bare Exception for every failure
            raise ModelError(f"{path} cannot be read: {error}") from error
        template: ChatTemplate | ChatTemplateError
        try:
            template = ChatTemplate.from_folder(folder)
        except ChatTemplateError as error:
            template = error
        return cls(tokenizer, template)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text. `add_special_tokens` adds what the model's post-processor does, such as a BOS."""
        # The batch call lets go of the interpreter's lock while it works; `encode` holds it for seconds on long texts.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a chat. The template writes special tokens itself, so none are added. Raises ChatTemplateError
        for messages that the template refuses, and where the model has no template."""
        if isinstance(self._template, ChatTemplateError):
            raise self._template
        chat = self._template.conversation(messages, tools=tools)
        text = self._template.render(
            chat.messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )
        return self.encode(text, add_special_tokens=False)

    def detokenizer(self) -> Detokenizer:
        """A detokenizer for one reply."""
        return Detokenizer(self._tokenizer)


class Detokenizer:
    """Turns ids into text as they come; the pieces add up to the text of all of them.

    Text that ends in U+FFFD may be the start of a character, so it is held back until the rest comes. Only ids since
    the last emitted text are decoded, with those before them for context: some decoders drop a leading space.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that became certain, often empty. Special tokens have none."""
        self._pending.append(token_id)
        return self._take(final=len(self._pending) >= MAX_WINDOW_TOKENS)

    def flush(self) -> str:
        """The rest, undecodable bytes as U+FFFD."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        if not self._pending:
            return ""
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)
        if text.endswith(REPLACEMENT) and not final:
            return ""
        self._context, self._pending = self._pending, []
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
