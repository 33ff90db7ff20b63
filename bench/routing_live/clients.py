"""The clients: every chat of a workload at its time, through whatever gateway; and what each reply said."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from bench.routing_live.engine_process import MODEL
from bench.routing_live.workloads import Chat, Turn, Workload

LAST_REPLY_SECONDS: Final = 120.0
"""Longest wait for a workload's replies, after the last chat has begun."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply, as its client saw it. `first_seconds`: to the first event, None where it was not streamed."""

    chat: Chat
    turn: int
    engine: str
    prompt_tokens: int
    cached_tokens: int
    reply_tokens: int
    first_seconds: float | None

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that the engine had to compute."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(slots=True)
class Replies:
    """Of one workload through one gateway. A chat ends with its first failure."""

    answers: list[Answer]
    failures: list[str]
    seconds: float = 0.0


class FailedError(Exception):
    """A request got no good reply; the message says what came."""


async def drive(port: int, workload: Workload) -> Replies:
    """Hold all chats. Raises TimeoutError when they do not end."""
    replies = Replies([], [])
    connector = aiohttp.TCPConnector(limit=0)
    started_at = time.monotonic()
    limit = workload.chats[-1].at + LAST_REPLY_SECONDS
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session,
        asyncio.timeout(limit),
        asyncio.TaskGroup() as tasks,
    ):
        for chat in workload.chats:
            await asyncio.sleep(started_at + chat.at - time.monotonic())
            tasks.create_task(_hold(session, chat, replies))
    replies.seconds = time.monotonic() - started_at
    return replies


async def _hold(session: aiohttp.ClientSession, chat: Chat, replies: Replies) -> None:
    messages = [{"role": "system", "content": chat.system}]
    try:
        for number, turn in enumerate(chat.turns):
            await asyncio.sleep(turn.think_seconds)
            messages.append({"role": "user", "content": turn.question})
            answer, text = await _ask(session, chat, number, turn, messages)
            messages.append({"role": "assistant", "content": text})
            replies.answers.append(answer)
    except (aiohttp.ClientError, FailedError) as error:
        replies.failures.append(f"{type(error).__name__}: {error}")


async def _ask(
    session: aiohttp.ClientSession, chat: Chat, number: int, turn: Turn, messages: list[dict[str, str]]
) -> tuple[Answer, str]:
    """The answer and its text. Raises FailedError, aiohttp.ClientError."""
    body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": turn.reply_tokens}
    if chat.streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    data = orjson.dumps(body)
    sent_at = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    async with session.post("/v1/chat/completions", data=data, headers=headers) as response:
        if response.status != 200:
            raise FailedError(f"status {response.status}: {(await response.text())[:200]}")
        if not chat.streamed:
            reply = orjson.loads(await response.read())
            return _answer(chat, number, reply, None), str(reply["choices"][0]["message"]["content"])
        first_seconds, texts, usage = None, [], None
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            if first_seconds is None:
                first_seconds = time.perf_counter() - sent_at
            event = orjson.loads(line[6:])
            if event["choices"]:
                texts.append(event["choices"][0]["delta"].get("content") or "")
            usage = event if event.get("usage") else usage
    if usage is None or first_seconds is None:
        raise FailedError("a stream ended without usage")
    return _answer(chat, number, usage, first_seconds), "".join(texts)


def _answer(chat: Chat, turn: int, reply: dict[str, Any], first_seconds: float | None) -> Answer:
    usage = reply["usage"]
    return Answer(
        chat,
        turn,
        reply.get("system_fingerprint") or "",
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        first_seconds,
    )
