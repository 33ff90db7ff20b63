"""From a request's prompt to the token ids that the engine computes. No clock and no I/O."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.prompts.body import CHARACTERS_PER_TOKEN
from gateway.prompts.media import MediaSize, PlacedItem, place_items
from gateway.prompts.prompt_input import Chat, Completion, Handling, PromptInput, Truncation, Unkeyed
from gateway.prompts.tokenizer import PreparedText, PromptTokenizer
from indexer.keys import TOKEN_BYTES, token_bytes
from warmroute.chat_template import ChatTemplate, Conversation
from warmroute.chat_template.conversation import MediaTexts
from warmroute.config.pool import MediaKind, MediaTokensConfig

logger = logging.getLogger(__name__)

_MARK: Final = "\ue000media\ue000"
"""Stands for a media item of unknown length, to find where the first one begins. The characters are from Unicode's
private-use area; a text that holds them gets fewer keys, nothing else."""
_CONTINUATIONS: Final = ("A", "<")
"""Texts that are added to the known part: ids that change with them are not certain."""
_LEAST_CHARACTERS: Final = 16
"""Each of several prompts counts as at least this many against the limit."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a prompt."""

    token_ids: bytes
    """The ids that are certain, from the first on, packed by `indexer.keys.token_bytes`. Of several prompts: those of
    the longest, less its last one, which the engine computes in any case."""
    tokens: int
    """The prompt's length; an estimate where `exact` is false."""
    items: Sequence[PlacedItem] = ()
    exact: bool = True
    text: PreparedText | None = field(default=None, compare=False, repr=False)
    """Where the prompt is one text: it remembers the keys of the text's beginning."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A rendered text with more characters to tokenise than the limit; `PromptEncoder.finish` takes it."""

    text: str
    prepared: PreparedText
    handling: Handling


class PromptEncoder:
    """One model's tokenizer and templates."""

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        template: ChatTemplate | None,
        media: Mapping[MediaKind, MediaTokensConfig] | None = None,
    ) -> None:
        """`media`: how many tokens an item takes, by kind (image, audio, video)."""
        self.tokenizer = tokenizer
        self.template = template
        self._sizes: dict[str, MediaSize] = {}
        self._media = MediaTexts(mark=_MARK)
        self._placeholders = MediaTexts({kind: config.placeholder for kind, config in (media or {}).items()})
        for kind, config in (media or {}).items():
            placeholder, repeated = (tokenizer.encode(text) for text in (config.placeholder, config.repeat_text))
            if len(placeholder) == len(repeated) == TOKEN_BYTES:
                self._sizes[kind] = MediaSize(placeholder, repeated * config.tokens)
            else:
                logger.error("media.%s: placeholder and repeat must each be one token of this model's: ignored", kind)

    def encode(self, request: PromptInput, *, character_limit: int) -> Encoded | Unkeyed | Unfinished | None:
        """Unfinished or None where more than `character_limit` characters are not in the memo and must be tokenised.

        Raises ChatTemplateError where the template refuses the chat; ConversationError, TypeError and OverflowError
        where the request has a shape that engines refuse.
        """
        if isinstance(request, Completion):
            return self._completion(request, character_limit)
        if self.template is None:
            return Unkeyed("template")
        chat = self.template.conversation(request.messages, tools=request.tools, typed_calls=request.typed_calls)
        if chat.media:
            return self._media_chat(self.template, request, chat, character_limit)
        return self._text(self.text(self.template, request, chat), request.handling, character_limit)

    @staticmethod
    def text(template: ChatTemplate, request: Chat, chat: Conversation) -> str:
        """A chat's prompt as text."""
        return template.render(
            chat.messages,
            tools=request.tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            variables=request.variables,
        )

    # --- completions -------------------------------------------------------------------------------------------------

    def _completion(self, request: Completion, character_limit: int) -> Encoded | Unfinished | None:
        prompts, handling = request.prompts, request.handling
        if len(prompts) == 1 and isinstance(prompts[0], str):
            return self._text(prompts[0], handling, character_limit)
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if sum(max(len(text), _LEAST_CHARACTERS * (len(texts) > 1)) for text in texts) > character_limit:
            return None
        encoded = [
            self._ids(prompt, handling) if isinstance(prompt, str) else _cut(token_bytes(prompt), handling.truncation)
            for prompt in prompts
        ]
        if len(encoded) == 1:
            return self._one(encoded[0], handling)
        # All go to one worker, chosen by the longest, which costs most to compute. The tokens of all are booked.
        longest = max(encoded, key=len)
        return Encoded(longest[:-TOKEN_BYTES], sum(map(len, encoded)) // TOKEN_BYTES, exact=False)

    def _text(self, text: str, handling: Handling, character_limit: int) -> Encoded | Unfinished:
        prepared = self.tokenizer.prepare(text, add_special_tokens=handling.add_special_tokens)
        unfinished = Unfinished(text, prepared, handling)
        return unfinished if prepared.new_characters > character_limit else self.finish(unfinished)

    def finish(self, unfinished: Unfinished) -> Encoded:
        """Tokenise the rest, without a limit."""
        handling = unfinished.handling
        if handling.truncation is not None:
            return self._one(self._ids(unfinished.text, handling), handling)
        token_ids = unfinished.prepared.encode()
        return Encoded(token_ids, len(token_ids) // TOKEN_BYTES, exact=handling.exact, text=unfinished.prepared)

    @staticmethod
    def _one(token_ids: bytes, handling: Handling) -> Encoded:
        return Encoded(token_ids, len(token_ids) // TOKEN_BYTES, exact=handling.exact)

    def _ids(self, text: str, handling: Handling) -> bytes:
        """Token ids of a text. Special tokens count towards a truncation's tokens, and are never cut off."""
        encode, special = self.tokenizer.encode, handling.add_special_tokens
        whole = encode(text, add_special_tokens=True) if special else encode(text)
        truncation = handling.truncation
        if truncation is None or len(whole) <= truncation.tokens * TOKEN_BYTES:
            return whole
        plain = encode(text) if special else whole
        added = len(whole) - len(plain)
        before = max(whole.find(plain), 0) if added else 0
        kept = _cut(plain, Truncation(max(truncation.tokens - added // TOKEN_BYTES, 0), truncation.side))
        return whole[:before] + kept + whole[before + len(plain) :]

    # --- media -------------------------------------------------------------------------------------------------------

    def _media_chat(
        self, template: ChatTemplate, request: Chat, marked: Conversation, character_limit: int
    ) -> Encoded | Unkeyed | None:
        if request.handling.truncation is not None:
            return Unkeyed("media")
        if all(item.kind in self._sizes for item in marked.media):
            chat = self._conversation(template, request, self._placeholders)
            text = self.text(template, request, chat)
            if self.tokenizer.new_characters(text) > character_limit:
                return None
            placed = place_items(self._ids(text, request.handling), chat.media, self._sizes)
            if placed is not None:
                token_ids, items = placed
                return Encoded(token_ids, len(token_ids) // TOKEN_BYTES, items, request.handling.exact)
        text = self.text(template, request, self._conversation(template, request, self._media))
        if self.tokenizer.new_characters(text) > character_limit:
            return None
        known, _, rest = text.partition(_MARK)
        token_ids = self._certain(known, request.handling)
        return Encoded(token_ids, len(token_ids) // TOKEN_BYTES + len(rest) // CHARACTERS_PER_TOKEN, exact=False)

    @staticmethod
    def _conversation(template: ChatTemplate, request: Chat, media: MediaTexts) -> Conversation:
        return template.conversation(
            request.messages, tools=request.tools, typed_calls=request.typed_calls, media=media
        )

    def _certain(self, text: str, handling: Handling) -> bytes:
        """The ids of a text that stay the same when more text follows."""
        ids = self._ids(text, handling)
        for continuation in _CONTINUATIONS:
            ids = common_start(ids, self._ids(text + continuation, handling))
        return ids


def common_start(one: bytes, other: bytes) -> bytes:
    """The longest common beginning of two packed lists of token ids."""
    low, high = 0, min(len(one), len(other)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        start, end = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if one[start:end] == other[start:end]:
            low = middle
        else:
            high = middle - 1
    return one[: low * TOKEN_BYTES]


def _cut(token_ids: bytes, truncation: Truncation | None) -> bytes:
    if truncation is None:
        return token_ids
    size = truncation.tokens * TOKEN_BYTES
    if truncation.side == "right":
        return token_ids[:size]
    return token_ids[-size:] if size else b""
