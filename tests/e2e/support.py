"""The real thing: `warmroute`'s own processes on free ports, the real model, a conversation through the gateway."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.ports import free_ports
from warmroute.cli.stack import MODEL, Part, Plan, Ports, Stack, say_on_stderr
from warmroute.config.log import LogConfig
from worker.model_cache import ensure_model

FILLER = "The quick brown fox jumps over the lazy dog while the river runs slowly to the sea. "


def plan(workers: int, **changes: Any) -> Plan:
    ports = iter(free_ports(2 * (workers + 2)))
    fields = {
        "host": "127.0.0.1",
        "indexer": Ports(next(ports), next(ports)),
        "workers": [Ports(next(ports), next(ports)) for _ in range(workers)],
        "gateways": [("gateway", "warm", Ports(next(ports), next(ports)))],
        "redis_url": None,
        "model_path": ensure_model(),
        "start_seconds": 120.0,
        "log": LogConfig(),
    }
    return Plan(**{**fields, **changes})


class SharedStack(ExitStack):
    """One stack after the other: the same as long as all of its parts live."""

    _stack: Stack | None = None
    _started: tuple[Part, ...] = ()

    def whole(self) -> Stack:
        if self._stack is None or any(part.child.exit_code is not None for part in self._started):
            self.close()
            self._stack = self.enter_context(Stack(plan(3), say_on_stderr))
            self._started = tuple(self._stack.parts.values())
        return self._stack


@dataclass
class Reply:
    worker: str
    matched: int
    cached: int
    prompt: int
    text: str


@dataclass
class Conversation:
    """One conversation under its own salt, so that no other warms it."""

    port: int
    messages: list[dict[str, str]] = field(default_factory=list)
    salt: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.messages.append({"role": "system", "content": FILLER * 12})

    async def say(self, session: aiohttp.ClientSession, text: str, **fields: Any) -> Reply:
        self.messages.append({"role": "user", "content": text})
        body = {
            "model": MODEL,
            "messages": self.messages,
            "max_tokens": 8,
            "temperature": 0,
            "cache_salt": self.salt,
            **fields,
        }
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        async with session.post(url, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            headers = response.headers
        reply = answer["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": reply})
        return Reply(
            headers["x-warmroute-worker"],
            int(headers["x-warmroute-matched-tokens"]),
            answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            answer["usage"]["prompt_tokens"],
            reply,
        )


def port_of(stack: Stack) -> int:
    """The gateway's."""
    return stack.plan.gateways[0][2].main


def run(scenario: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(200), aiohttp.ClientSession() as session:
            await scenario(session)

    asyncio.run(limited())
