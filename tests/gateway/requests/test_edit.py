"""What the worker's body and the client's reply become on their way: names, priority, usage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.requests.edit import INLINE_BYTES
from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Link, chunk, replying, run, worker
from tests.gateway.requests.support import CHAT, as_json, sse
from tests.gateway.support import gate


def test_an_alias_is_the_engines_name_there_and_the_clients_name_here() -> None:
    events = [b'data: {"model":"lora","choices":[{"delta":{"content":"\xc3\xa9"}}]}\n\n', b"data: [DONE]\n\n"]

    async def script(link: Link) -> None:
        while True:
            asked = await link.request()
            assert asked.header(b"accept-encoding") == b"identity"
            if b"stream" in asked.body:
                await link.send(SSE_HEAD)
                for byte in b"".join(events):
                    await link.send(chunk(bytes([byte])))
                await link.send(LAST_CHUNK)
            else:
                await link.send(as_json(b'{"id":"x", "model": "lora", "choices":[]}'))

    async def scenario() -> None:
        async with worker(script) as engine, gate(engine.port, aliases={"public": "lora", "same": "m"}) as gateway:
            headers = ["Accept-Encoding: gzip, br"]
            body = b'{"messages":[],  "model" : "public"}'
            answer = await gateway.ask("POST", "/v1/chat/completions", body, headers)
            assert answer.body == b'{"id":"x", "model": "public", "choices":[]}'
            assert engine.requests[0].body == body.replace(b"public", b"lora")
            streamed = {"model": "public", "stream": True, "stream_options": {"include_usage": True}}
            answer = await gateway.ask("POST", "/v1/chat/completions", streamed, headers)
            assert answer.body == b"".join(events).replace(b"lora", b"public")
            await gateway.ask("POST", "/v1/embeddings", {"model": "same"}, headers)
            assert orjson.loads(engine.requests[2].body) == {"model": "m"}

    run(scenario())


def test_streams_tell_the_gateway_their_usage_and_the_client_what_it_asked_for() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":64}}}\n\n'
    events = (b'data: {"choices":[{"delta":{}}]}\n\n', usage, b"data: [DONE]\n\n")

    async def scenario() -> None:
        async with worker(replying(sse(*events))) as engine, gate(engine.port) as gateway:
            answer = await gateway.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
            assert answer.body == events[0] + events[2]
            assert orjson.loads(engine.requests[0].body)["stream_options"] == {"include_usage": True}
            asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
            answer = await gateway.ask("POST", "/v1/chat/completions", asked)
            assert answer.body == b"".join(events)
            assert engine.requests[1].body == orjson.dumps(asked)
            assert gateway.count("cached_tokens_total", pool="p") == 128

    run(scenario())


def test_an_edited_reply_has_the_right_length() -> None:
    async def script(link: Link) -> None:
        await link.request()
        whole = as_json(b'{"model":"lora"}')
        await link.send(whole[:-4])
        await link.send(whole[-4:])

    async def scenario() -> None:
        for aliases in ({"much longer name": "lora"}, {"s": "lora"}):
            async with worker(script) as engine, gate(engine.port, aliases=aliases) as gateway:
                name = next(iter(aliases))
                answer = await gateway.ask("POST", "/v1/embeddings", {"model": name})
                assert orjson.loads(answer.body) == {"model": name}

    run(scenario())


def test_priority_goes_the_engines_way() -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port) as gateway:
            await gateway.ask("POST", "/v1/completions", {"model": "m", "priority": 3})
            gateway.pool.hold("w0", [], engine="vllm")
            await gateway.ask("POST", "/v1/completions", {"model": "m", "priority": 3})
            assert [orjson.loads(message.body)["priority"] for message in engine.requests] == [3, -3]

    run(scenario())


def test_large_bodies_are_edited_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    to_thread = asyncio.to_thread

    async def recorded(function: Callable[..., Any], *arguments: Any) -> Any:
        def noted() -> Any:
            threads.append(threading.get_ident())
            return function(*arguments)

        return await to_thread(noted)

    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine, gate(engine.port, aliases={"public": "lora"}) as gateway:
            for size, count in ((10, 0), (INLINE_BYTES, 1)):
                body = {"model": "public", "prompt": "x" * size}
                assert (await gateway.ask("POST", "/v1/completions", body)).status == 200
                assert orjson.loads(engine.requests[-1].body) == {**body, "model": "lora"}
                assert len(threads) == count
            assert threading.get_ident() not in threads

    monkeypatch.setattr(asyncio, "to_thread", recorded)
    run(scenario())
