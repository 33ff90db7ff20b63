"""From a stream of tokens to pieces of text: detokenizing, stop strings, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from worker.engine.request import FinishReason
from worker.engine.runner import TokenStream
from worker.engine.tokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that may be sent; the last piece has the finish reason."""

    text: str
    finish_reason: FinishReason | None = None


class StopStrings:
    """Ends a text before the first of `stops`, holding back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; returns what may be sent and whether a stop string was met."""
        held = self._held + text
        starts = [start for stop in self._stops if (start := held.find(stop)) >= 0]
        if starts:
            self._held = ""
            return held[: min(starts)], True
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


class Generation:
    """A reply in progress; whoever starts it calls `abort` at its end. `completion_tokens` and `cached_tokens` are
    right at every piece."""

    def __init__(self, stream: TokenStream, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self.prompt_tokens = stream.prompt_tokens
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._stream = stream
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)

    async def pieces(self, token_timeout_seconds: float) -> AsyncIterator[TextPiece]:
        """One piece a token, empty where no text became certain. Raises EngineStoppedError, and TimeoutError when a
        token takes longer than that."""
        while True:
            async with asyncio.timeout(token_timeout_seconds):
                output = await anext(self._stream)
            self.completion_tokens += 1
            self.cached_tokens = output.cached_tokens
            text = self._detokenizer.push(output.token_id)
            if output.finish_reason is not None:
                text += self._detokenizer.flush()
            text, stopped = self._stops.push(text)
            if stopped:
                yield TextPiece(text, "stop")
                return
            if output.finish_reason is not None:
                yield TextPiece(text + self._stops.flush(), output.finish_reason)
                return
            yield TextPiece(text)

    def abort(self) -> None:
        """Stop generating; does nothing after the end."""
        self._stream.abort()


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-size:])), 0)
