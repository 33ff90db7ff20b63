"""The simulated engine's tokenizer: chats to token ids, and replies that are tokenised again as they were generated."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.relay.load import WORDS
from gateway.prompts.tokenizer import PromptTokenizer
from indexer.keys import TOKEN_BYTES
from warmroute.chat_template import ChatTemplate


class Tokens:
    """A model's tokenizer and template, by the gateway's fast tokenizer: what a prompt costs here is not measured."""

    def __init__(self, folder: Path) -> None:
        """Raises TokenizerError, ChatTemplateError."""
        self._tokenizer = PromptTokenizer.from_folder(folder)
        self._template = ChatTemplate.from_folder(folder)
        self._first = self._single_tokens("")
        self._others = self._single_tokens(" ")

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> array[int]:
        """Token ids of a chat."""
        chat = self._template.conversation(messages)
        return _ids(self._tokenizer.encode(self._template.render(chat.messages, add_generation_prompt=True)))

    def reply(self, prompt_ids: array[int], count: int) -> list[tuple[str, int]]:
        """Text and id of so many tokens, which depend on the prompt alone, whoever answers it."""
        random = Random(zlib.crc32(prompt_ids))
        return [random.choice(self._first), *random.choices(self._others, k=count - 1)]

    def _single_tokens(self, before: str) -> list[tuple[str, int]]:
        """Words that are one token each, where they follow `before`."""
        encoded = [(before + word, _ids(self._tokenizer.encode(before + word))) for word in sorted(set(WORDS))]
        return [(text, ids[0]) for text, ids in encoded if len(ids) == 1]


def _ids(packed: bytes) -> array[int]:
    ids = array("I", packed)
    assert ids.itemsize == TOKEN_BYTES
    return ids
