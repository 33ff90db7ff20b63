"""Reply bodies in OpenAI's shapes, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from worker.engine.text import Generation, TextPiece


def usage(generation: Generation) -> dict[str, Any]:
    """`usage` of a reply, cached prompt tokens always among it."""
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.completion_tokens,
        "total_tokens": generation.prompt_tokens + generation.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


class Reply(ABC):
    """The shape of one reply."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str) -> None:
        self._head = {"id": f"{self.id_prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, text: str, finish_reason: str, generation: Generation) -> dict[str, Any]:
        """The body of a reply that is not streamed."""
        choice = {"index": 0, **self._full(text), "logprobs": None, "finish_reason": finish_reason}
        return {**self._head, "object": self.whole_object, "choices": [choice], "usage": usage(generation)}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first text."""
        return []

    def chunk(self, piece: TextPiece) -> dict[str, Any]:
        """The chunk of a piece."""
        return self._chunk(self._part(piece.text), piece.finish_reason)

    def usage_chunk(self, generation: Generation) -> dict[str, Any]:
        """The chunk that `stream_options.include_usage` asks for."""
        return {**self._head, "object": self.chunk_object, "choices": [], "usage": usage(generation)}

    def _chunk(self, part: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head, "object": self.chunk_object, "choices": [choice]}

    @abstractmethod
    def _full(self, text: str) -> dict[str, Any]:
        """A choice's text in a whole reply."""

    @abstractmethod
    def _part(self, text: str) -> dict[str, Any]:
        """A choice's text in a chunk."""


class ChatReply(Reply):
    """`chat.completion`; a stream opens with the role."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk({"delta": {"role": "assistant", "content": ""}}, None)]

    def _full(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def _part(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}


class CompletionReply(Reply):
    """`text_completion`, whole and in chunks."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def _full(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _part(self, text: str) -> dict[str, Any]:
        return {"text": text}
