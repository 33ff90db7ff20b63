"""Against the built-in engine, and against small servers that answer as engines do."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.prompts import engine_tokens
from gateway.prompts.engine_tokens import EngineTokens, EngineTokensError
from indexer.keys import token_bytes

CHAT = "/v1/chat/completions"
FIELDS: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "add_generation_prompt": False,
}
BODY = json.dumps(FIELDS).encode()


@asynccontextmanager
async def engine(
    routes: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]],
) -> AsyncIterator[tuple[EngineTokens, str]]:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_post(path, handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    tokens = EngineTokens()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield tokens, f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await tokens.close()
        await runner.cleanup()


def test_renders_the_request_as_it_is() -> None:
    asked: list[bytes] = []

    async def render(request: web.Request) -> web.Response:
        asked.append(await request.read())
        return web.json_response({"token_ids": [5, 6, 7]})

    async def run() -> None:
        async with engine({CHAT + "/render": render}) as (tokens, address):
            assert await tokens.ask(address, CHAT, BODY, FIELDS, 5.0) == token_bytes([5, 6, 7])

    asyncio.run(run())
    assert asked == [BODY]


def test_the_first_of_several_prompts() -> None:
    async def render(request: web.Request) -> web.Response:
        return web.json_response([{"token_ids": [5]}, {"token_ids": [6]}])

    async def run() -> None:
        async with engine({"/v1/completions/render": render}) as (tokens, address):
            assert await tokens.ask(address, "/v1/completions", b"{}", {}, 5.0) == token_bytes([5])

    asyncio.run(run())


def test_tokenize_where_nothing_renders_gets_only_what_makes_the_prompt() -> None:
    asked: list[dict[str, Any]] = []

    async def tokenize(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"count": 2, "tokens": [8, 9]})

    async def run() -> None:
        async with engine({"/tokenize": tokenize}) as (tokens, address):
            for _ in range(2):
                assert await tokens.ask(address, CHAT, BODY, FIELDS, 5.0) == token_bytes([8, 9])
            with pytest.raises(EngineTokensError) as raised:
                await tokens.ask(address, "/v1/responses", b"{}", {"input": "hi"}, 5.0)
            assert raised.value.unserved

    asyncio.run(run())
    assert asked == [{name: value for name, value in FIELDS.items() if name != "temperature"}] * 2


def test_an_engine_without_either_says_so() -> None:
    async def run() -> None:
        async with engine({}) as (tokens, address):
            with pytest.raises(EngineTokensError) as raised:
                await tokens.ask(address, CHAT, BODY, FIELDS, 5.0)
            assert raised.value.unserved

    asyncio.run(run())


@pytest.mark.parametrize(
    "reply",
    [
        b"no json",
        b"[]",
        b"{}",
        b"7",
        b'{"token_ids": "abc"}',
        b'{"token_ids": [1.5]}',
        b'{"token_ids": [-1]}',
        b'{"token_ids": null}',
        b'[{"token_ids": [[1]]}]',
    ],
)
def test_an_odd_reply_is_a_failure_of_this_once(reply: bytes) -> None:
    async def render(request: web.Request) -> web.Response:
        return web.Response(body=reply)

    async def run() -> None:
        async with engine({CHAT + "/render": render}) as (tokens, address):
            with pytest.raises(EngineTokensError) as raised:
                await tokens.ask(address, CHAT, BODY, FIELDS, 5.0)
            assert not raised.value.unserved

    asyncio.run(run())


def test_an_engine_that_is_silent_or_away_or_floods_is_waited_for_no_longer() -> None:
    async def silent(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def flood(request: web.Request) -> web.Response:
        return web.Response(body=bytes(engine_tokens.REPLY_LIMIT_BYTES + 1))

    async def failing(request: web.Request) -> web.Response:
        return web.Response(status=500)

    async def run() -> None:
        for handler, words, seconds in (
            (silent, "in time", 0.05),
            (flood, "more than", 30.0),
            (failing, "answered 500", 30.0),
        ):
            async with engine({CHAT + "/render": handler}) as (tokens, address):
                with pytest.raises(EngineTokensError, match=words) as raised:
                    await tokens.ask(address, CHAT, BODY, FIELDS, seconds)
                assert not raised.value.unserved
        with pytest.raises(EngineTokensError, match="stopping"):
            await tokens.ask(address, CHAT, BODY, FIELDS, 5.0)
        away = EngineTokens()
        with pytest.raises(EngineTokensError):  # nobody listens there any more
            await away.ask(address, CHAT, BODY, FIELDS, 5.0)
        await away.close()

    asyncio.run(run())


def test_so_many_questions_at_once_and_no_more() -> None:
    async def run() -> None:
        gate = asyncio.Event()

        async def render(request: web.Request) -> web.Response:
            await gate.wait()
            return web.json_response({"token_ids": [1]})

        async with engine({CHAT + "/render": render}) as (tokens, address):
            questions = [
                asyncio.ensure_future(tokens.ask(address, CHAT, BODY, FIELDS, 30.0))
                for _ in range(engine_tokens.CONCURRENT + 1)
            ]
            with pytest.raises(EngineTokensError, match="under way"):
                await questions.pop()
            gate.set()
            assert await asyncio.gather(*questions) == [token_bytes([1])] * engine_tokens.CONCURRENT
            assert await tokens.ask(address, CHAT, BODY, FIELDS, 30.0) == token_bytes([1])

    asyncio.run(run())


def test_what_vllm_answered() -> None:
    """Captured replies of /render and /tokenize."""
    folder = os.environ.get("WARMROUTE_TEST_FIXTURES")
    if folder is None:
        pytest.skip("WARMROUTE_TEST_FIXTURES names no folder of captures")
    captures = json.loads((Path(folder) / "vllm-endpoints.json").read_text("utf-8"))

    async def check(name: str, path: str) -> None:
        capture = captures[name]

        async def answer(request: web.Request) -> web.Response:
            return web.json_response(capture["response"], status=capture["status"])

        fields = capture["request"]["body"]
        async with engine({capture["request"]["path"]: answer}) as (tokens, address):
            ids = await tokens.ask(address, path, json.dumps(fields).encode(), fields, 5.0)
        reply = capture["response"]
        first = reply[0] if isinstance(reply, list) else reply
        assert ids == token_bytes(first.get("token_ids") or first["tokens"])

    async def run() -> None:
        for name, path in (
            ("render_chat", CHAT),
            ("render_chat_parts", CHAT),
            ("render_completion", "/v1/completions"),
            ("render_completion_two", "/v1/completions"),
            ("tokenize_chat", CHAT),
            ("tokenize_chat_tools", CHAT),
            ("tokenize_prompt", "/v1/completions"),
        ):
            await check(name, path)

    asyncio.run(run())
