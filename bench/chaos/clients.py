"""A steady load over both gateways, from clients as behind a load balancer, and what became of their requests."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson

from bench.chaos.engine_process import MODEL, PROMPT_TOKENS

REQUESTS_PER_SECOND: Final = 20
REPLY_TOKENS: Final = 16
PROMPTS: Final = 24
"""That are asked at a time, two thirds of what the engines' caches have room for together. Each fault has others than
the one before, so that the caches change while it lasts."""
QUESTION_TOKENS: Final = 8
PATIENCE_SECONDS: Final = 10.0
"""For a connection and the head of a reply, of each gateway; twice what a gateway gives a worker."""
SILENCE_SECONDS: Final = 15.0
"""Within a reply."""


@dataclass(slots=True)
class Tally:
    """What clients saw from one fault's begin to the next's. `lost`: no 2xx from either gateway; `broken`: a reply that
    began and did not end as it should. `reasons` of both. `slowest`: seconds until the head of a reply."""

    asked: int = 0
    good: int = 0
    failovers: int = 0
    lost: int = 0
    broken: int = 0
    slowest: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


class _NoReplyError(Exception):
    """A gateway gave no head of a reply that counts; `elsewhere`: a load balancer would ask another one."""

    def __init__(self, reason: str, *, elsewhere: bool) -> None:
        super().__init__(reason)
        self.elsewhere = elsewhere


def prompts(seed: int, turn: int) -> list[list[int]]:
    """Token ids, each prompt with a first one of its own. `turn`: which prompts; each has others."""
    draw = random.Random(f"{seed} {turn}")
    return [
        [1000 + turn * PROMPTS + number, *(draw.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS - 1))]
        for number in range(PROMPTS)
    ]


def body(prompt: list[int], question: int = 0, *, stream: bool = False) -> bytes:
    """A request for a prompt, with a question at its end."""
    ids = [*prompt, *(2000 + (question + place) % 20_000 for place in range(QUESTION_TOKENS))]
    fields: dict[str, Any] = {"model": MODEL, "prompt": ids, "max_tokens": REPLY_TOKENS, "stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    return orjson.dumps(fields)


class Load:
    """`run` is the one task, with a task for each request; its owner cancels it. `tally` is that of the fault now."""

    def __init__(self, urls: list[str], seed: int) -> None:
        """`urls`: of both gateways."""
        self.tally = Tally()
        self.prompts = prompts(seed, 0)
        """Those that are asked now."""
        self.former: list[list[int]] = []
        """Those that were asked before them."""
        self._urls = urls
        self._seed, self._turn = seed, 0
        self._draw = random.Random(f"{seed} requests")
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled; then no request is left."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        started_at = time.monotonic()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                for number in itertools.count():
                    await asyncio.sleep(max(0.0, started_at + number / REQUESTS_PER_SECOND - time.monotonic()))
                    task = asyncio.get_running_loop().create_task(self._ask(session, number, self.tally))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
            finally:
                for task in self._asking:
                    task.cancel()
                await asyncio.gather(*self._asking, return_exceptions=True)

    def turn(self) -> None:
        """Other prompts from now on."""
        self._turn += 1
        self.former, self.prompts = self.prompts, prompts(self._seed, self._turn)

    async def settle(self) -> None:
        """Wait for the requests under way now; each ends within its own deadlines."""
        await asyncio.gather(*list(self._asking))

    async def _ask(self, session: aiohttp.ClientSession, number: int, tally: Tally) -> None:
        stream = number // 2 % 2 == 0
        data = body(self._draw.choice(self.prompts), number, stream=stream)
        first = number % 2
        tally.asked += 1
        began = time.monotonic()
        for attempt in range(2):
            try:
                response = await self._head(session, self._urls[(first + attempt) % 2], data, number)
            except _NoReplyError as error:
                if attempt == 0 and error.elsewhere:
                    tally.failovers += 1
                    continue
                tally.lost += 1
                tally.reasons[f"lost: {error}"] += 1
                return
            break
        tally.slowest = max(tally.slowest, time.monotonic() - began)
        async with response:
            try:
                text = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                broken = type(error).__name__
            else:
                whole = text.endswith(b"data: [DONE]\n\n") if stream else text.startswith(b"{")
                broken = "" if whole else "an end too early"
        if broken:
            tally.broken += 1
            tally.reasons[f"broken: {broken}"] += 1
        else:
            tally.good += 1

    async def _head(self, session: aiohttp.ClientSession, url: str, data: bytes, number: int) -> aiohttp.ClientResponse:
        """Raises _NoReplyError."""
        # Every third connection is a new one, as of clients that come and go.
        headers = {"Content-Type": "application/json"} | ({"Connection": "close"} if number % 3 == 0 else {})
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                response = await session.post(f"{url}/v1/completions", data=data, headers=headers)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _NoReplyError(type(error).__name__, elsewhere=True) from error
        if response.status // 100 != 2:
            async with response:
                try:
                    text = (await response.text())[:200]
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    text = type(error).__name__
            raise _NoReplyError(f"{response.status} {text}", elsewhere=response.status == 503)
        return response
