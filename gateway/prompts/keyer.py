"""From a parsed request to index keys, within a time budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.prompts.body import CHARACTERS_PER_TOKEN, PIECES_LIMIT, BodyKind, RoutedBody, routed_body
from gateway.prompts.encoding import PromptEncoder, Unfinished
from gateway.prompts.media import block_extras
from gateway.prompts.prompt_input import Chat, Completion, PromptInput, Unkeyed
from gateway.prompts.tokenizer import PromptTokenizer, TokenizerError
from gateway.prompts.tried_files import Templates
from indexer.keys import TOKEN_BYTES, chain, root
from warmroute.chat_template import ChatTemplate, ChatTemplateError, ConversationError
from warmroute.config.pool import MediaKind, MediaTokensConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Work on the loop delays every stream of the process. Templates take up to 4 us a message, tool call or tool and 3 ns a
# byte; packing and keys take less. So a prompt within both bounds takes about a millisecond. Larger ones go to the
# threads, as do those with more to tokenise than the tokenizer's `inline_characters`.
INLINE_BYTES: Final = 65_536
INLINE_PIECES: Final = 200
THREADS: Final = 2
# Bytes: more than any context holds. A thread would need seconds, for a request that the engine refuses.
SIZE_LIMIT: Final = 8_000_000
PENDING_LIMIT: Final = 32
# Of bodies whose objects the threads hold, also of requests that wait no longer; one is always taken.
PENDING_BYTES: Final = 67_108_864


@dataclass(frozen=True, slots=True)
class KeySpace:
    """What a pool's keys depend on, besides the tokens."""

    fingerprint: str
    index_block_tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's length in tokens, and the keys of its full index blocks."""

    tokens: int
    keys: list[int]
    exact: bool = True
    """False where the engine may count other tokens: it inserts those of media, cuts a prompt that is too long, or gets
    several prompts at once."""


class PromptKeyer:
    """Keys one pool's prompts. Long ones go to `THREADS` threads, at most `PENDING_LIMIT` at a time."""

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        template: ChatTemplate | None,
        *,
        budget_seconds: float,
        media: Mapping[MediaKind, MediaTokensConfig] | None = None,
        templates: Templates | None = None,
    ) -> None:
        """`templates`: workers' own, in `template`'s place."""
        self.tokenizer = tokenizer
        self.templates = templates
        self.encoder = PromptEncoder(tokenizer, template if templates is None else templates.large, media)
        self._small = self.encoder if templates is None else PromptEncoder(tokenizer, templates.small, media)
        self._small_chats = templates is None or templates.large is None or templates.small is not None
        self._budget_seconds = budget_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prompts")
        self._pending = 0
        self._pending_bytes = 0

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        budget_seconds: float,
        media: Mapping[MediaKind, MediaTokensConfig] | None = None,
        templates: Templates | None = None,
    ) -> PromptKeyer:
        """Read tokenizer and, unless they are given, chat templates of a model's folder. Raises TokenizerError.

        A missing or broken template is no error: then chats are routed by load, and completions are keyed.
        """
        template: ChatTemplate | None = None
        if templates is None:
            try:
                template = ChatTemplate.from_folder(folder)
            except ChatTemplateError as error:
                logger.warning("chats are routed by load: %s", error)
        tokenizer = PromptTokenizer.from_folder(folder)
        return cls(tokenizer, template, budget_seconds=budget_seconds, media=media, templates=templates)

    def close(self) -> None:
        """End the threads after the work that they have begun, and the process that renders at once. Does not wait for
        them."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.templates is not None:
            self.templates.close()

    async def read(
        self, fields: Mapping[str, Any], size: int, kind: BodyKind, *, deadline: float
    ) -> RoutedBody | Unkeyed:
        """`routed_body`, on a thread above INLINE_BYTES; Unkeyed where it is not done by the deadline.

        `size` in bytes; `deadline` in the loop's time. Raises BadRequestError.
        """
        if size <= INLINE_BYTES:
            return routed_body(fields, size, kind)
        work = partial(routed_body, fields, size, kind)
        return await self._on_thread(work, size, size // CHARACTERS_PER_TOKEN, deadline)

    def deadline(self) -> float:
        """The deadline of a request that arrives now, in the running loop's time."""
        return asyncio.get_running_loop().time() + self._budget_seconds

    async def key(self, body: RoutedBody, space: KeySpace, *, deadline: float | None = None) -> Prompt | Unkeyed:
        """The prompt's keys, or why there are none. Raises nothing for a client's input. `deadline`: in the loop's
        time; None: the budget from now."""
        if isinstance(body.prompt, Unkeyed):
            return body.prompt
        begun = None
        if _is_small(body) and (self._small_chats or not isinstance(body.prompt, Chat)):
            limit = self.tokenizer.inline_characters
            prompt = self._prompt(self._small, body, space, character_limit=limit)
            if isinstance(prompt, Prompt | Unkeyed):
                return prompt
            begun = prompt
        estimate = body.estimated_tokens
        if body.size - body.media_bytes > SIZE_LIMIT:
            return Unkeyed("too_long", estimate)
        work = partial(self._long_prompt, body, space, begun)
        return await self._on_thread(work, body.size, estimate, self.deadline() if deadline is None else deadline)

    async def _on_thread(self, work: Callable[[], T], size: int, estimate: int, deadline: float) -> T | Unkeyed:
        if self._pending >= PENDING_LIMIT or (self._pending and self._pending_bytes + size > PENDING_BYTES):
            return Unkeyed("busy", estimate)
        self._pending += 1
        self._pending_bytes += size
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(partial(self._finished, size))
        try:
            # Shielded: the thread goes on after the timeout and fills the memo for the next request.
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(future)
        except TimeoutError:
            return Unkeyed("budget", estimate)

    def _finished(self, size: int, future: asyncio.Future[Any]) -> None:
        self._pending -= 1
        self._pending_bytes -= size

    def _long_prompt(self, body: RoutedBody, space: KeySpace, begun: Unfinished | None) -> Prompt | Unkeyed:
        """On a thread."""
        if _pieces(body.prompt) > PIECES_LIMIT:
            return Unkeyed("too_long", body.estimated_tokens)
        prompt = self._prompt(self.encoder, body, space, character_limit=SIZE_LIMIT, begun=begun)
        return prompt if isinstance(prompt, Prompt | Unkeyed) else Unkeyed("too_long", body.estimated_tokens)

    @staticmethod
    def _prompt(
        encoder: PromptEncoder,
        body: RoutedBody,
        space: KeySpace,
        *,
        character_limit: int,
        begun: Unfinished | None = None,
    ) -> Prompt | Unkeyed | Unfinished | None:
        """Render, tokenise, key. Where more characters must be tokenised than the limit: Unfinished, which a later call
        takes as `begun`, or None."""
        if isinstance(body.prompt, Unkeyed):
            return body.prompt
        try:
            if begun is None:
                encoded = encoder.encode(body.prompt, character_limit=character_limit)
            else:
                encoded = encoder.finish(begun)
        except (ConversationError, TypeError, OverflowError):
            return Unkeyed("malformed")
        except ChatTemplateError:
            return Unkeyed("template")
        except Exception:
            logger.exception("a prompt could not be keyed")
            return Unkeyed("error", body.estimated_tokens)
        if encoded is None or isinstance(encoded, Unfinished):
            return encoded
        if isinstance(encoded, Unkeyed):
            return Unkeyed(encoded.reason, body.estimated_tokens)
        seed = root(space.fingerprint, adapter=body.adapter, salt=body.salt)
        block_tokens = space.index_block_tokens
        if encoded.text is not None:
            keys = encoded.text.keys(seed, block_tokens)
        else:
            extras = block_extras(encoded.items, block_tokens) if encoded.items else None
            keys = chain(encoded.token_ids, seed, block_tokens=block_tokens, extras=extras)
        return Prompt(encoded.tokens, keys, encoded.exact)

    @staticmethod
    def key_ids(token_ids: bytes, body: RoutedBody, space: KeySpace) -> Prompt:
        """`token_ids`: the prompt's, as the engine gave them, packed by `indexer.keys.token_bytes`."""
        seed = root(space.fingerprint, adapter=body.adapter, salt=body.salt)
        return Prompt(len(token_ids) // TOKEN_BYTES, chain(token_ids, seed, block_tokens=space.index_block_tokens))


def _is_small(body: RoutedBody) -> bool:
    return body.size <= INLINE_BYTES and _pieces(body.prompt) <= INLINE_PIECES


def _pieces(prompt: PromptInput | Unkeyed) -> int:
    """How many messages, parts, tool calls, tools or prompts there are: each has a fixed cost."""
    if not isinstance(prompt, Chat):
        return len(prompt.prompts) if isinstance(prompt, Completion) else 0
    pieces = len(prompt.messages) + len(prompt.tools or ())
    for message in prompt.messages:
        for name in ("content", "tool_calls"):
            if isinstance(within := message.get(name), list):
                pieces += len(within)
    return pieces


__all__ = ["CHARACTERS_PER_TOKEN", "KeySpace", "Prompt", "PromptKeyer", "TokenizerError"]
