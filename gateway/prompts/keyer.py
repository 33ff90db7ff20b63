"""From a parsed request to index keys, within a time budget."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.prompts.body import Chat, RoutedBody, Unkeyed
from gateway.prompts.tokenizer import PromptTokenizer, TokenizerError
from indexer.keys import TOKEN_BYTES, chain, root, token_bytes
from warmroute.chat_template import ChatTemplate, ChatTemplateError

logger = logging.getLogger(__name__)

# Tokenising runs at 1.5 to 2 MB/s: this much takes about 1 ms, and the loop can bear that.
INLINE_CHARACTERS: Final = 2_000
PENDING_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class KeySpace:
    """What a pool's workers key by."""

    fingerprint: str
    index_block_tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt: how many tokens, and the keys of its full index blocks."""

    tokens: int
    keys: list[int]


class PromptKeyer:
    """One pool's prompts. Long texts go to one thread, at most `PENDING_LIMIT` at a time."""

    def __init__(self, tokenizer: PromptTokenizer, template: ChatTemplate | None, *, budget_seconds: float) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._budget_seconds = budget_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._pending = 0

    @classmethod
    def from_folder(cls, folder: Path, *, budget_seconds: float) -> PromptKeyer:
        """Read tokenizer and chat template of a model's folder; raises TokenizerError.

        A missing or broken template is no error: chats are routed by load then, completions are keyed.
        """
        template: ChatTemplate | None = None
        try:
            template = ChatTemplate.from_folder(folder)
        except ChatTemplateError as error:
            logger.warning("chats are routed by load: %s", error)
        return cls(PromptTokenizer.from_folder(folder), template, budget_seconds=budget_seconds)

    def close(self) -> None:
        """Let the thread end; what it has begun is finished."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def key(self, body: RoutedBody, space: KeySpace) -> Prompt | Unkeyed:
        """The prompt's keys, or why there are none. Never raises for what a client sent."""
        if isinstance(body.prompt, Unkeyed):
            return body.prompt
        try:
            tokens = await self._tokens(body.prompt)
        except ChatTemplateError:
            return Unkeyed("template")
        if isinstance(tokens, Unkeyed):
            return tokens
        seed = root(space.fingerprint, salt=body.salt)
        keys = chain(tokens, seed, block_tokens=space.index_block_tokens)
        return Prompt(len(tokens) // TOKEN_BYTES, keys)

    async def _tokens(self, prompt: Chat | str | tuple[int, ...]) -> bytes | Unkeyed:
        if isinstance(prompt, tuple):
            return token_bytes(prompt)
        if isinstance(prompt, str):
            return await self._encode(prompt, add_special_tokens=True)
        if self._template is None:
            return Unkeyed("template")
        text = self._template.render(
            prompt.messages,
            tools=prompt.tools,
            add_generation_prompt=prompt.add_generation_prompt,
            **prompt.template_variables,
        )
        # The template writes the special tokens itself.
        return await self._encode(text, add_special_tokens=False)

    async def _encode(self, text: str, *, add_special_tokens: bool) -> bytes | Unkeyed:
        tokenizer = self.tokenizer
        if self._pending == 0 and tokenizer.unknown_characters(text) <= INLINE_CHARACTERS:
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if self._pending >= PENDING_LIMIT:
            return Unkeyed("busy")
        self._pending += 1
        work = asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens)
        )
        work.add_done_callback(self._finished)
        try:
            # Shielded: what is late for this request is remembered for the next one.
            return await asyncio.wait_for(asyncio.shield(work), self._budget_seconds)
        except TimeoutError:
            return Unkeyed("budget")

    def _finished(self, work: asyncio.Future[bytes]) -> None:
        self._pending -= 1
        if not work.cancelled() and (error := work.exception()) is not None:
            logger.error("tokenising failed", exc_info=error)


__all__ = ["KeySpace", "Prompt", "PromptKeyer", "TokenizerError"]
