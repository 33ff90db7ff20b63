"""Two real vLLM servers behind agents and a gateway: what is predicted is what vLLM reports as cached.

`make test-vllm` with these variables:

    WARMROUTE_LIVE_VLLM_SERVE  a command that starts one server in the foreground, on 127.0.0.1 and the port in PORT,
                               with --enable-prompt-tokens-details and the endpoints in EV_ENDPOINT and EV_REPLAY
    WARMROUTE_LIVE_VLLM_MODEL  the folder of the model that it serves, with tokenizer.json and a chat template
    WARMROUTE_LIVE_VLLM_NAME   its public name (tiny-qwen)
    WARMROUTE_LIVE_VLLM_ADAPTER  a LoRA adapter that it serves by this name (none: conversations with one are left out)
    WARMROUTE_LIVE_VLLM_BLOCK_TOKENS  tokens in one of its blocks (16)
    WARMROUTE_LIVE_VLLM_PROMPTS  prompts of 400 tokens that are more than both caches hold, to force evictions (40)

Caches of about 4,096 tokens and VLLM_SERVER_DEV_MODE=1, for `POST /reset_prefix_cache`, suit these tests best.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.live.engine import BLOCK_TOKENS
from tests.live.fleet import INDEX_TOKENS, MODEL, Conversation, Fleet, Kind, Session
from tests.support import eventually

pytestmark = pytest.mark.timeout(1800)

PROMPTS = int(os.environ.get("WARMROUTE_LIVE_VLLM_PROMPTS", "40"))
ADAPTER = os.environ.get("WARMROUTE_LIVE_VLLM_ADAPTER", "")
SLOW_START_SECONDS = 120.0
KINDS: tuple[Kind, ...] = ("chat", "text", "tokens", "responses", "messages")


def run(fleet: Fleet, scenario: Callable[[Session, random.Random], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with fleet.session() as session:
            # Prompts that no other test has asked.
            await scenario(session, random.Random(fleet.name))

    asyncio.run(whole())


def several(session: Session, source: random.Random) -> list[Conversation]:
    """One of each kind, whose blocks must be told apart where engines tell them apart."""
    found = [Conversation(session, source, kind) for kind in KINDS]
    found.append(Conversation(session, source, "chat", {"cache_salt": "of-a-tenant"}))
    if ADAPTER:
        found.append(Conversation(session, source, "chat", {"model": ADAPTER}))
    return found


async def turns(session: Session, conversations: list[Conversation], number: int) -> None:
    """Turns of all conversations, each round at once: no more than one cache holds, or they evict each other."""
    for _ in range(number):
        await asyncio.gather(*(conversation.turn() for conversation in conversations))
        await session.settled(*conversations)


@pytest.mark.parametrize("index_tokens", [INDEX_TOKENS, 16, 128])
def test_conversations(fleet: Fleet, index_tokens: int) -> None:
    async def scenario(session: Session, source: random.Random) -> None:
        conversations = several(session, source)
        await turns(session, conversations, 1)
        for _ in range(4):
            before = {
                id(one): one.reply.prompt for one in conversations if one.reply
            }  # empty where an API does not say
            await turns(session, conversations, 1)
            for one in conversations:
                assert one.reply is not None
                assert one.reply.prompt[:200] == before[id(one)][:200]
                # Whatever the worker, this much of the last turn's prompt was held there and preferred.
                unit = max(index_tokens, BLOCK_TOKENS)
                assert one.reply.predicted >= 200 // unit * unit, one
        # The same tokens under another salt or adapter are another prompt.
        for fields in ({}, {"cache_salt": "another"}, *([{"model": ADAPTER}] if ADAPTER else [])):
            plain = next(one for one in conversations if one.kind == "tokens")
            assert plain.reply is not None
            reply = await session.ask("/v1/completions", prompt=plain.reply.prompt, **fields)
            assert (reply.reported > 0) == (not fields), fields

    run(fleet, scenario)


@pytest.mark.parametrize("index_tokens", [INDEX_TOKENS, 16])
def test_evictions(fleet: Fleet, index_tokens: int) -> None:
    async def scenario(session: Session, source: random.Random) -> None:
        conversations = [Conversation(session, source) for _ in range(3)]
        await turns(session, conversations, 2)
        crowd = [Conversation(session, source, "tokens", opening_words=400) for _ in range(PROMPTS)]
        for one in crowd:
            await one.turn()
        await session.settled(crowd[-1])
        assert sum(truth.removed for truth in session.truths.values()) > 0
        forgotten = 0
        for one in conversations:
            assert one.reply is not None
            known = len(one.reply.prompt)
            reply = await one.turn()
            forgotten += reply.reported < known // 2
            await session.settled(one)
        assert forgotten, "nothing was evicted: more WARMROUTE_LIVE_VLLM_PROMPTS"
        # At the edge of the cache: the latest are there, earlier ones in part or not at all.
        for one in reversed(crowd[-15:]):
            await one.again()
            await session.settled()

    run(fleet, scenario)


def test_a_client_that_goes_away(fleet: Fleet) -> None:
    async def scenario(session: Session, source: random.Random) -> None:
        for _ in range(3):
            prompt = source.choices(range(1000), k=300)
            url = f"http://127.0.0.1:{fleet.port}/v1/completions"
            body: dict[str, Any] = {
                "model": MODEL, "prompt": prompt, "stream": True, "max_tokens": 1500, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True,
            }  # fmt: skip
            got: list[int] = []
            async with session.http.post(url, json=body) as response:
                worker = response.headers["x-warmroute-worker"]
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        got += json.loads(line[6:])["choices"][0]["token_ids"] or []
                    if len(got) >= 100:
                        break
            engine = next(engine for engine in fleet.engines if engine.name == worker)

            await eventually(lambda url=f"{engine.url}/metrics": idle(session, url), within=60)
            await session.settled()
            # All that it had computed until then is cached, and known: the reply as well as the prompt.
            reply = await session.ask("/v1/completions", prompt=prompt + got)
            assert reply.worker == worker
            assert reply.reported >= (300 + 90) // BLOCK_TOKENS * BLOCK_TOKENS
            assert reply.predicted >= 300 // BLOCK_TOKENS * BLOCK_TOKENS

    run(fleet, scenario)


def test_a_crowd(fleet: Fleet) -> None:
    """More at once than the caches hold, some of whom leave: engines preempt, and write some blocks twice."""

    async def scenario(session: Session, source: random.Random) -> None:
        common = source.choices(range(1000), k=200)

        async def one(number: int) -> None:
            prompt = common + source.choices(range(1000), k=200)
            leaves = number % 4 == 0
            try:
                async with asyncio.timeout(0.2 if leaves else 300):
                    await session.ask("/v1/completions", at_once=True, prompt=prompt, max_tokens=300, ignore_eos=True)
            except TimeoutError:
                assert leaves

        await asyncio.gather(*(one(number) for number in range(32)))
        for engine in fleet.engines:
            await eventually(lambda url=f"{engine.url}/metrics": idle(session, url), within=120)
        await session.settled()
        for engine in fleet.engines:
            preempted = await session.metric(f"{engine.url}/metrics", "num_preemptions_total")
            print(f"{engine.name}: {preempted:.0f} preemptions")
        await turns(session, several(session, source), 3)

    run(fleet, scenario)


async def idle(session: Session, url: str) -> bool:
    running = await session.metric(url, "num_requests_running")
    return running == 0 and await session.metric(url, "num_requests_waiting") == 0


def test_an_engine_that_clears_its_cache(fleet: Fleet) -> None:
    async def scenario(session: Session, source: random.Random) -> None:
        conversations = several(session, source)
        await turns(session, conversations, 2)
        for engine in fleet.engines:
            async with session.http.post(f"{engine.url}/reset_prefix_cache") as response:
                if response.status == 404:
                    pytest.skip("the server has no POST /reset_prefix_cache: start it with VLLM_SERVER_DEV_MODE=1")
            # vLLM says so with its next step.
            async with session.http.post(
                f"{engine.url}/v1/completions", json={"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1}
            ) as response:
                assert response.status == 200
        await eventually(lambda: index_is_empty(session), within=30)
        await session.settled()
        for one in conversations:
            assert (await one.turn()).reported == 0
        await session.settled(*conversations)
        await turns(session, conversations, 1)
        assert all(one.reply is not None and one.reply.reported > 200 for one in conversations)

    run(fleet, scenario)


def index_is_empty(session: Session) -> bool:
    return all(not set(session.index.mirror.held(name, "device")) for name in session.truths)


def test_an_agent_that_restarts(fleet: Fleet) -> None:
    async def scenario(session: Session, source: random.Random) -> None:
        conversations = several(session, source)
        await turns(session, conversations, 2)
        for agent in fleet.agents.values():
            child = agent.child
            assert child is not None
            os.kill(child.pid, 9)
            await eventually(lambda child=child: child.exit_code is not None)
        # Meanwhile the engines compute and evict unseen.
        for _ in range(10):
            prompt = source.choices(range(1000), k=400)
            for engine in fleet.engines:
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "ignore_eos": True}
                async with session.http.post(f"{engine.url}/v1/completions", json=body) as response:
                    assert response.status == 200
        for agent in fleet.agents.values():
            agent.start()
            await eventually(agent.ready, within=60)
        await session.settled()
        await turns(session, conversations, 2)

    run(fleet, scenario)


def test_engines_that_restart(fleet: Fleet) -> None:
    """The first is killed, the second ended; each comes back with nothing cached, and nothing of it is expected."""

    async def scenario(session: Session, source: random.Random) -> None:
        conversations = several(session, source)
        await turns(session, conversations, 2)
        for engine, end in zip(fleet.engines, ("kill", "terminate"), strict=True):
            assert any(one.worker == engine.name for one in conversations)
            await asyncio.to_thread(getattr(engine, end))
            session.down.add(engine.name)
            await session.all_serve()
            await turns(session, conversations, 1)
            assert all(one.worker != engine.name for one in conversations)
            engine.start()
            await asyncio.to_thread(engine.wait)
            session.down.clear()
            await session.all_serve()
            await eventually(fleet.agents[engine.name].ready, within=60)
            await session.settled()
            assert not set(session.index.mirror.held(engine.name, "device"))
            await turns(session, conversations, 1)
            # An engine that comes back gets few requests at first; then new conversations go there too.
            deadline = time.monotonic() + SLOW_START_SECONDS
            while True:
                conversations = several(session, source)
                await turns(session, conversations, 2)
                if any(one.worker == engine.name for one in conversations):
                    break
                assert time.monotonic() < deadline, f"no conversation went to {engine.name}"

    run(fleet, scenario)
