"""Whether all is well: gateways and workers ready, and each gateway's view of the index equal to what engines hold."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import aiohttp

from bench.chaos.clients import Load, body
from bench.chaos.cluster import GATEWAYS, Cluster
from bench.chaos.engine_process import POOL, PROMPT_TOKENS

BY_CACHE: Final = "by cache and load"
CALL_SECONDS: Final = 2.0
POLL_SECONDS: Final = 0.2

Held = dict[str, set[int]]
"""First token ids of the prompts, by worker."""


class _NotYetError(Exception):
    """What is not well yet."""


class Healing:
    """Asks the parts themselves, past the proxies."""

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self.trouble = ""
        """What was not well when it was looked at last."""
        self._cluster = cluster
        self._load = load

    async def wait(self, since: float, limit_seconds: float) -> float | None:
        """Seconds from `since` (time.monotonic) until all that is there was well; None past the limit."""
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    await self._look(session)
                except (_NotYetError, aiohttp.ClientError, OSError, TimeoutError, KeyError) as error:
                    self.trouble = str(error) or type(error).__name__
                else:
                    return time.monotonic() - since
                if time.monotonic() - since > limit_seconds:
                    return None
                await asyncio.sleep(POLL_SECONDS)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        gone = self._cluster.gone
        gateways = [name for name in GATEWAYS if name not in gone]
        workers = [name for name in self._cluster.workers if name not in gone]
        for name in gateways:
            await self._ready(session, name, len(workers))
        if gone & {"redis", "indexer"}:
            return  # nothing is told of what engines hold
        publishing = [name for name in workers if name != "engine-1" or "agent-1" not in gone]
        before = await self._held(session, publishing)
        views = [(name, await self._view(session, name, publishing)) for name in gateways]
        if await self._held(session, publishing) != before:
            raise _NotYetError("the caches changed while they were looked at")
        for name, view in views:
            for worker in publishing:
                if view[worker] != before[worker]:
                    missing, extra = len(before[worker] - view[worker]), len(view[worker] - before[worker])
                    raise _NotYetError(f"{name} misses {missing} prompts of {worker} and has {extra} too many")

    async def _ready(self, session: aiohttp.ClientSession, gateway: str, workers: int) -> None:
        async with session.get(f"{self._admin(gateway)}/readyz") as response:
            details = await response.json()
        pool = details["pools"][POOL]
        if not details["ready"] or pool["ready_workers"] != workers:
            raise _NotYetError(f"{gateway} has {pool['ready_workers']} of {workers} workers ready")
        if pool["routing"] != BY_CACHE:
            raise _NotYetError(f"{gateway} routes {pool['routing']}")

    async def _held(self, session: aiohttp.ClientSession, workers: list[str]) -> Held:
        """The truth, of the prompts of this turn and the one before."""
        known = {prompt[0] for prompt in (*self._load.prompts, *self._load.former)}
        held: Held = {}
        for name in workers:
            async with session.get(f"http://{self._cluster.host(name)}:{self._cluster.ports[name]}/held") as response:
                held[name] = known.intersection((await response.json())["held"])
        return held

    async def _view(self, session: aiohttp.ClientSession, gateway: str, workers: list[str]) -> Held:
        """What a gateway knows of the index."""
        view: Held = {name: set() for name in workers}
        url = f"{self._admin(gateway)}/explain?path=/v1/completions"
        for prompt in [*self._load.prompts, *self._load.former]:
            async with session.post(url, data=body(prompt), headers={"Content-Type": "application/json"}) as response:
                answer: dict[str, Any] = await response.json()
            if response.status != 200:
                raise _NotYetError(f"{gateway} answers {response.status} to /explain: {str(answer)[:200]}")
            for each in answer["decision"]["workers"]:
                name, tokens = each["worker"], each["match"]["device_tokens"]
                if name not in view:
                    continue
                if each["index"] != "current":
                    raise _NotYetError(f"{gateway}: the index of {name} is {each['index']}")
                if tokens not in (0, PROMPT_TOKENS):
                    raise _NotYetError(f"{gateway}: {name} holds {tokens} tokens of a prompt")
                if tokens:
                    view[name].add(prompt[0])
        return view

    def _admin(self, gateway: str) -> str:
        return f"http://127.0.0.1:{self._cluster.admin_ports[gateway]}"
