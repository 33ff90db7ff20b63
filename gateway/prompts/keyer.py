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

# Work on the loop stalls every stream of the process. Templates, packing and keys of a body of this size take 1 to
# 2 ms, tokenising this many characters 1 ms (1.5 to 2 MB/s); what is larger goes to the thread.
INLINE_BYTES: Final = 32_768
INLINE_CHARACTERS: Final = 2_000
# More than any context holds today; the thread would work on it for seconds, for a request that fails.
SIZE_LIMIT: Final = 8_000_000
PENDING_LIMIT: Final = 32
CHARACTERS_PER_TOKEN: Final = 4


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
    """One pool's prompts. Long ones go to one thread, at most `PENDING_LIMIT` at a time."""

    def __init__(self, tokenizer: PromptTokenizer, template: ChatTemplate | None, *, budget_seconds: float) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._budget_seconds = budget_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompts")
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
        if body.size <= INLINE_BYTES:
            prompt = self._prompt(body, space, character_limit=INLINE_CHARACTERS)
            if prompt is not None:
                return prompt
        estimate = body.size // CHARACTERS_PER_TOKEN
        if body.size > SIZE_LIMIT:
            return Unkeyed("too_long", estimate)
        if self._pending >= PENDING_LIMIT:
            return Unkeyed("busy", estimate)
        self._pending += 1
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._long_prompt, body, space)
        work.add_done_callback(self._finished)
        try:
            # Shielded: what is late for this request is remembered for the next one.
            async with asyncio.timeout(self._budget_seconds):
                return await asyncio.shield(work)
        except TimeoutError:
            return Unkeyed("budget", estimate)

    def _finished(self, work: asyncio.Future[Prompt | Unkeyed]) -> None:
        self._pending -= 1

    def _long_prompt(self, body: RoutedBody, space: KeySpace) -> Prompt | Unkeyed:
        """On the thread."""
        prompt = self._prompt(body, space, character_limit=SIZE_LIMIT)
        return prompt or Unkeyed("too_long", body.size // CHARACTERS_PER_TOKEN)

    def _prompt(self, body: RoutedBody, space: KeySpace, *, character_limit: int) -> Prompt | Unkeyed | None:
        """Render, tokenise, key; None where more characters would have to be tokenised than the limit."""
        try:
            tokens = self._tokens(body, character_limit)
        except ChatTemplateError:
            return Unkeyed("template")
        except (TypeError, OverflowError):
            return Unkeyed("malformed")
        except Exception:
            logger.exception("a prompt could not be keyed")
            return Unkeyed("error", body.size // CHARACTERS_PER_TOKEN)
        if not isinstance(tokens, bytes):
            return tokens
        seed = root(space.fingerprint, adapter=body.adapter, salt=body.salt)
        keys = chain(tokens, seed, block_tokens=space.index_block_tokens)
        return Prompt(len(tokens) // TOKEN_BYTES, keys)

    def _tokens(self, body: RoutedBody, character_limit: int) -> bytes | Unkeyed | None:
        prompt = body.prompt
        match prompt:
            case str():
                # The engine puts the model's own special tokens around a plain prompt.
                return (
                    self.tokenizer.encode(prompt, add_special_tokens=True) if len(prompt) <= character_limit else None
                )
            case Chat():
                if self._template is None:
                    return Unkeyed("template")
                text = self._template.render(
                    prompt.messages,
                    tools=prompt.tools,
                    add_generation_prompt=prompt.add_generation_prompt,
                    variables=prompt.template_variables,
                )
                return self.tokenizer.encode(text) if self.tokenizer.new_characters(text) <= character_limit else None
            case Unkeyed():
                return prompt
            case _:
                return token_bytes(prompt)


__all__ = ["KeySpace", "Prompt", "PromptKeyer", "TokenizerError"]
