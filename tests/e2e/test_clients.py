"""The clients that people use, against the public port: captured replies of a real engine, and the built-in engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest

from tests.gateway.http.support import LAST_CHUNK, SSE_HEAD, Link, Script, chunk, plain, run, worker
from tests.gateway.support import Gate, gate
from warmroute.cli.stack import MODEL, Stack

BASE = "tiny-qwen"
ALIAS = "org/chat-model"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def captures() -> dict[str, Any]:
    folder = os.environ.get("WARMROUTE_TEST_FIXTURES")
    if not folder:
        pytest.skip("WARMROUTE_TEST_FIXTURES names no folder of captures from real engines")
    names = ("vllm-endpoints", "vllm-errors", "vllm-streams")
    return {name: orjson.loads((Path(folder) / f"{name}.json").read_bytes()) for name in names}


def as_json(capture: dict[str, Any]) -> bytes:
    head = plain(orjson.dumps(capture["response"]), b"%d Captured" % capture["status"])
    return head.replace(b"text/plain", b"application/json")


def events(*data: str | dict[str, Any], named: bool = False) -> bytes:
    """A stream, cut in the middle of every event."""
    pieces = []
    for item in data:
        text = item if isinstance(item, str) else orjson.dumps(item).decode()
        name = f"event: {item['type']}\n" if named and isinstance(item, dict) else ""
        event = f"{name}data: {text}\n\n".encode()
        pieces += [chunk(event[: len(event) // 2]), chunk(event[len(event) // 2 :])]
    return SSE_HEAD + b"".join(pieces) + LAST_CHUNK


def replaying(choose: Callable[[str, dict[str, Any]], bytes]) -> Script:
    """An engine that serves BASE alone and answers with what `choose(path, body)` says."""

    async def script(link: Link) -> None:
        while True:
            asked = await link.request()
            body = orjson.loads(asked.body)
            assert body["model"] == BASE
            await link.send(choose(asked.start.split()[1].decode(), body))

    return script


@asynccontextmanager
async def gateway(choose: Callable[[str, dict[str, Any]], bytes]) -> AsyncIterator[Gate]:
    async with worker(replaying(choose)) as engine, gate(engine.port, aliases={ALIAS: BASE, BASE: BASE}) as this:
        yield this


def openai_client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def anthropic_client(port: int) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0)


def within(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(scenario())


def test_openai_replies(captures: dict[str, Any]) -> None:
    replies = captures["vllm-endpoints"]
    names = {
        "/v1/chat/completions": "chat_logprobs",
        "/v1/completions": "completion_batch",
        "/v1/responses": "responses",
    }

    async def scenario() -> None:
        async with gateway(lambda path, _: as_json(replies[names[path]])) as this:
            async with openai_client(this.server.port) as client:
                chat = await client.chat.completions.create(model=ALIAS, messages=HI)
                captured = replies["chat_logprobs"]["response"]
                assert (chat.model, chat.id) == (ALIAS, captured["id"])
                assert chat.choices[0].message.content == captured["choices"][0]["message"]["content"]
                assert chat.usage.prompt_tokens == captured["usage"]["prompt_tokens"]
                text = await client.completions.create(model=ALIAS, prompt=["Hello", "Good morning"])
                assert (text.model, len(text.choices)) == (ALIAS, 2)
                response = await client.responses.create(model=ALIAS, input="hi")
                assert (response.model, response.id) == (ALIAS, replies["responses"]["response"]["id"])
                assert response.output_text == "\n\n\n\n"
                base = await client.chat.completions.create(model=BASE, messages=HI)
                assert base.model == BASE
                listed = [model.id async for model in client.models.list()]
                assert {ALIAS, BASE} <= set(listed)
                assert (await client.models.retrieve(ALIAS)).id == ALIAS
            assert this.idle()

    within(scenario)


@pytest.mark.parametrize("stream", ["completions", "chat_with_usage", "chat_named_tool"])
def test_openai_streams(captures: dict[str, Any], stream: str) -> None:
    data = captures["vllm-streams"][stream]["data"]
    chunks = [orjson.loads(item) for item in data[:-1]]

    async def scenario() -> None:
        async with gateway(lambda *_: events(*data)) as this, openai_client(this.server.port) as client:
            options = {"include_usage": True} if stream == "chat_with_usage" else openai.NOT_GIVEN
            fields: dict[str, Any] = {"model": ALIAS, "stream": True, "stream_options": options}
            if stream == "completions":
                received = [item async for item in await client.completions.create(prompt="Hello", **fields)]
                assert [item.choices[0].text for item in received] == [item["choices"][0]["text"] for item in chunks]
            else:
                received = [item async for item in await client.chat.completions.create(messages=HI, **fields)]
                assert [len(item.choices) for item in received] == [len(item["choices"]) for item in chunks]
            assert {item.model for item in received} == {ALIAS}

    within(scenario)


def test_a_usage_that_nobody_asked_for_is_not_seen(captures: dict[str, Any]) -> None:
    data = captures["vllm-streams"]["chat_with_usage"]["data"]

    async def scenario() -> None:
        async with gateway(lambda *_: events(*data)) as this, openai_client(this.server.port) as client:
            stream = await client.chat.completions.create(model=BASE, messages=HI, stream=True)
            received = [item async for item in stream]
            assert len(received) == len(data) - 2  # [DONE] and the usage
            assert all(item.choices and item.usage is None for item in received)

    within(scenario)


def test_anthropic_replies(captures: dict[str, Any]) -> None:
    replies = captures["vllm-endpoints"]
    names = {"/v1/messages": "messages_anthropic", "/v1/messages/count_tokens": "messages_count_tokens"}

    async def scenario() -> None:
        async with gateway(lambda path, _: as_json(replies[names[path]])) as this:
            async with anthropic_client(this.server.port) as client:
                message = await client.messages.create(model=ALIAS, max_tokens=4, messages=HI)
                assert (message.model, message.content[0].text) == (ALIAS, "\n\n\n\n")
                counted = await client.messages.count_tokens(model=ALIAS, messages=HI)
                assert counted.input_tokens == 9
            assert this.count("prompt_tokens_total", pool="p") == 9

    within(scenario)


def test_anthropic_streams() -> None:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": BASE}
    usage = {"input_tokens": 9, "output_tokens": 0}
    stream = (
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "héllo 😀"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": 16},
        },
        {"type": "message_stop"},
    )

    async def scenario() -> None:
        async with gateway(lambda *_: events(*stream, named=True)) as this:
            client = anthropic_client(this.server.port)
            async with client, client.messages.stream(model=ALIAS, max_tokens=9, messages=HI) as received:
                assert "".join([text async for text in received.text_stream]) == "héllo 😀"
                assert (await received.get_final_message()).model == ALIAS
            assert this.count("prompt_tokens_total", pool="p") == 25
            assert this.count("cached_tokens_total", pool="p") == 16

    within(scenario)


def test_errors_reach_the_clients_as_their_own(captures: dict[str, Any]) -> None:
    errors = captures["vllm-errors"]

    async def scenario() -> None:
        async with gateway(lambda *_: as_json(errors["messages_string"])) as this:
            async with openai_client(this.server.port) as client:
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.chat.completions.create(model=BASE, messages="hi")  # type: ignore[arg-type]
                assert refused.value.param == "body.messages"
                with pytest.raises(openai.NotFoundError) as unknown:
                    await client.chat.completions.create(model="none", messages=HI)
                assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
                assert unknown.value.request_id
            async with anthropic_client(this.server.port) as other:
                with pytest.raises(anthropic.NotFoundError) as missing:
                    await other.messages.create(model="none", max_tokens=1, messages=HI)
                assert missing.value.body["error"]["type"] == "not_found_error"

    within(scenario)


def test_other_apis_pass_through() -> None:
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}
    embeddings = {"object": "list", "data": [vector], "model": BASE, "usage": {"prompt_tokens": 2, "total_tokens": 2}}

    async def script(link: Link) -> None:
        while True:
            asked = await link.request()
            answer = {"text": "heard"} if b"/audio/" in asked.start else embeddings
            assert BASE.encode() in asked.body
            await link.send(plain(orjson.dumps(answer)).replace(b"text/plain", b"application/json"))

    async def scenario() -> None:
        async with (
            worker(script) as engine,
            gate(engine.port, aliases={ALIAS: BASE}) as this,
            openai_client(this.server.port) as client,
        ):
            answer = await client.embeddings.create(model=ALIAS, input="x", encoding_format="float")
            assert (answer.model, answer.data[0].embedding) == (ALIAS, [0.5, -1.0])
            heard = await client.audio.transcriptions.create(model=ALIAS, file=("a.wav", b"\0\xff\r\n" * 9))
            assert heard.text == "heard"

    within(scenario)


def test_the_clients_with_the_built_in_engine(stack: Stack) -> None:
    port = stack.plan.gateways[0][2].main

    async def scenario() -> None:
        async with openai_client(port) as client:
            fields: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "temperature": 0}
            whole = await client.chat.completions.create(messages=HI, **fields)
            stream = await client.chat.completions.create(messages=HI, stream=True, **fields)
            pieces = [item async for item in stream]
            assert all(item.choices for item in pieces)
            text = "".join(item.choices[0].delta.content or "" for item in pieces)
            assert text == whole.choices[0].message.content
            plain_text = await client.completions.create(prompt="Once", **fields)
            assert plain_text.usage.completion_tokens <= 4
            with pytest.raises(openai.NotFoundError):
                await client.embeddings.create(model=MODEL, input="x")

    asyncio.run(asyncio.wait_for(scenario(), 60))
