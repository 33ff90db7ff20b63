"""The OpenAI API over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.support import eventually
from tests.worker.engine.support import Gate, generate, greedy, running_server, tiny_config
from worker.engine.engine import Engine
from worker.engine.runner import EngineRunner
from worker.engine.tokenizer import EngineTokenizer
from worker.events import EngineLoad

HELLO = [{"role": "user", "content": "hello there, engine"}]
Body = dict[str, Any]
Scenario = Callable[[ClientSession, EngineRunner], Awaitable[None]]


def serving(folder: Path, scenario: Scenario, **options: Any) -> None:
    async def run() -> None:
        async with running_server(folder, **options) as (client, runner):
            await scenario(client, runner)

    asyncio.run(run())


def chat(**fields: Any) -> Body:
    return {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


def completion(**fields: Any) -> Body:
    return {"model": "tiny", "prompt": "once upon", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


async def post(client: ClientSession, path: str, body: Body, status: int = 200) -> Body:
    async with client.post(path, json=body) as response:
        text = await response.text()
        assert response.status == status, text
        value: Body = json.loads(text)
        return value


async def stream(client: ClientSession, path: str, body: Body) -> list[Body]:
    """The events of a stream, whose framing is checked."""
    async with client.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        events = (await response.text()).split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def expected_text(folder: Path, prompt: list[int], max_tokens: int) -> str:
    [reply] = generate(Engine.from_folder(folder, tiny_config()), [prompt], max_tokens)
    detokenizer = EngineTokenizer.from_folder(folder).detokenizer()
    return "".join(map(detokenizer.push, reply)) + detokenizer.flush()


def test_a_chat(tiny_folder: Path) -> None:
    prompt = EngineTokenizer.from_folder(tiny_folder).encode_chat(HELLO)

    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        for cached in (0, 16):
            reply = await post(client, "/v1/chat/completions", chat())
            assert reply["id"].startswith("chatcmpl-")
            assert (reply["object"], reply["model"]) == ("chat.completion", "tiny")
            assert reply["choices"] == [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": expected_text(tiny_folder, prompt, 8)},
                    "logprobs": None,
                    "finish_reason": "length",
                }
            ]
            assert reply["usage"] == {
                "prompt_tokens": len(prompt),
                "completion_tokens": 8,
                "total_tokens": len(prompt) + 8,
                "prompt_tokens_details": {"cached_tokens": cached},
            }

    serving(tiny_folder, scenario)


def test_a_streamed_chat_adds_up_to_the_whole_one(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        whole = await post(client, "/v1/chat/completions", chat(max_tokens=60))
        events = await stream(client, "/v1/chat/completions", chat(max_tokens=60))
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert {(event["object"], event["id"]) for event in events} == {("chat.completion.chunk", events[0]["id"])}
        assert [event["choices"][0]["finish_reason"] for event in events][-2:] == [None, "length"]
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        assert text == whole["choices"][0]["message"]["content"]
        assert not any("usage" in event for event in events)

    serving(tiny_folder, scenario)


def test_completions_of_text_and_of_tokens(tiny_folder: Path) -> None:
    ids = EngineTokenizer.from_folder(tiny_folder).encode("once upon", add_special_tokens=True)

    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        whole = await post(client, "/v1/completions", completion())
        assert whole["object"] == "text_completion"
        assert whole["choices"][0]["text"] == expected_text(tiny_folder, ids, 8)
        by_ids = await post(client, "/v1/completions", completion(prompt=ids))
        assert by_ids["choices"] == whole["choices"]
        events = await stream(client, "/v1/completions", completion(stream_options={"include_usage": True}))
        usage = events.pop()
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 8
        assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
        default = await post(client, "/v1/completions", {"prompt": "x", "ignore_eos": True, "unknown": {"a": 1}})
        assert default["usage"]["completion_tokens"] == 16

    serving(tiny_folder, scenario)


def test_stop_strings(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, runner: EngineRunner) -> None:
        whole = await post(client, "/v1/completions", completion(max_tokens=60))
        text = whole["choices"][0]["text"]
        stop = text[10:13]
        body = completion(max_tokens=60, stop=["never in it", stop])
        stopped = await post(client, "/v1/completions", body)
        assert stopped["choices"][0] == {
            **whole["choices"][0],
            "text": text[: text.index(stop)],
            "finish_reason": "stop",
        }
        assert stopped["usage"]["completion_tokens"] < 60
        events = await stream(client, "/v1/completions", body)
        assert "".join(event["choices"][0]["text"] for event in events) == text[: text.index(stop)]
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        await eventually(lambda: runner.load() == EngineLoad())

    serving(tiny_folder, scenario)


def test_a_reply_ends_at_the_end_token(tiny_folder: Path) -> None:
    """Some seed ends within the context; greedy replies of this model go in circles."""

    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        bodies = [{"prompt": [5, 6, 7], "max_tokens": 400, "temperature": 2, "seed": seed} for seed in range(6)]
        replies = await asyncio.gather(*(post(client, "/v1/completions", body) for body in bodies))
        stopped = [reply for reply in replies if reply["choices"][0]["finish_reason"] == "stop"]
        assert stopped
        assert all(reply["usage"]["completion_tokens"] < 400 for reply in stopped)
        assert not any("<|end|>" in reply["choices"][0]["text"] for reply in replies)

    serving(tiny_folder, scenario)


def test_seeds(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        async def text(seed: int | None, **fields: Any) -> str:
            body = completion(temperature=1.5, seed=seed, max_tokens=20, **fields)
            reply = await post(client, "/v1/completions", body)
            said: str = reply["choices"][0]["text"]
            return said

        together = await asyncio.gather(*(text(seed) for seed in (1, 1, 2, None, None)))
        assert together[0] == together[1] == await text(1)
        assert len({*together, await text(None)}) == 5
        assert await text(1, top_p=1e-6) == await text(2, top_p=1e-6)

    serving(tiny_folder, scenario)


def test_salts_isolate(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        cached = []
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}, {}):
            reply = await post(client, "/v1/chat/completions", chat(**salt))
            cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 0, 0, 16, 16]

    serving(tiny_folder, scenario)


CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"


def test_a_chat_without_a_limit_goes_on_to_the_end_of_the_context(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        body = chat()
        del body["max_tokens"]
        assert (await post(client, CHAT, body))["usage"]["total_tokens"] == 512

    serving(tiny_folder, scenario)


def test_a_full_queue(tiny_folder: Path) -> None:
    gate = Gate()

    async def scenario(client: ClientSession, runner: EngineRunner) -> None:
        with gate.closed():
            body = chat(stream=True)
            async with client.post(CHAT, json=body), client.post(CHAT, json=body):
                error = (await post(client, CHAT, chat(), 503))["error"]
        assert (error["code"], error["type"]) == ("queue_full", "server_error")
        await eventually(lambda: runner.load() == EngineLoad())
        await post(client, CHAT, chat())

    serving(tiny_folder, scenario, sink=gate, max_batch_requests=1, max_waiting_requests=1)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_a_disconnect_aborts(tiny_folder: Path, *, streamed: bool, running: bool) -> None:
    """Whether the request is in the engine or waits behind another, streamed or not. The engine is held meanwhile, so
    that nothing can end by itself."""
    gate = Gate()

    async def scenario(client: ClientSession, runner: EngineRunner) -> None:
        with gate.closed():
            other = None if running else runner.submit([3] * 20, greedy(450))
            if other is not None:
                await eventually(lambda: gate.events)
            request = asyncio.create_task(post(client, CHAT, chat(max_tokens=450, stream=streamed)))
            await eventually(lambda: gate.events and len(runner._streams) == (1 if running else 2))
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await eventually(lambda: len(runner._streams) == (0 if running else 1))
            if other is not None:
                other.abort()
        await eventually(lambda: runner.load() == EngineLoad())
        assert runner.stats().generation_tokens == 1

    serving(tiny_folder, scenario, sink=gate, max_batch_requests=1)


def test_a_disconnect_after_some_tokens_aborts(tiny_folder: Path) -> None:
    gate = Gate()

    async def scenario(client: ClientSession, runner: EngineRunner) -> None:
        async with client.post(CHAT, json=chat(max_tokens=450, stream=True)) as response:
            for _ in range(6):
                await response.content.readline()
            with gate.closed():
                response.close()
                await eventually(lambda: not runner._streams)
        await eventually(lambda: runner.load() == EngineLoad())
        assert runner.stats().generation_tokens < 450

    serving(tiny_folder, scenario, sink=gate)


def test_a_failing_engine_says_so_everywhere(tiny_folder: Path) -> None:
    gate = Gate()

    async def scenario(client: ClientSession, runner: EngineRunner) -> None:
        async with client.get("/health") as response:
            assert response.status == 200
        gate.failure = RuntimeError("out of ink")
        with gate.closed():
            streamed = asyncio.create_task(stream(client, CHAT, chat()))
            whole = asyncio.create_task(post(client, CHAT, chat(), 503))
            await eventually(lambda: runner.load().running_requests + runner.load().waiting_requests == 2)
        [event] = await streamed
        assert event["error"]["code"] == "engine_stopped"
        assert "out of ink" in event["error"]["message"]
        assert (await whole)["error"]["code"] == "engine_stopped"
        async with client.get("/health") as response:
            assert response.status == 503
        assert (await post(client, CHAT, chat(), 503))["error"]["code"] == "engine_stopped"

    serving(tiny_folder, scenario, sink=gate)


def test_a_token_that_does_not_come(tiny_folder: Path) -> None:
    gate = Gate()

    async def scenario(client: ClientSession, runner: EngineRunner) -> None:
        with gate.closed():
            assert (await post(client, CHAT, chat(), 504))["error"]["code"] == "timeout"
            [event] = await stream(client, CHAT, chat())
            assert event["error"]["code"] == "timeout"
        await eventually(lambda: runner.load() == EngineLoad())

    serving(tiny_folder, scenario, sink=gate, token_timeout_seconds=0.2)


def test_models_tokenize_and_reset(tiny_folder: Path) -> None:
    tokenizer = EngineTokenizer.from_folder(tiny_folder)

    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        async with client.get("/v1/models") as response:
            [model] = (await response.json())["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 512)
        tokens = await post(client, TOKENIZE, {"model": "tiny", "prompt": "héllo"})
        assert tokens == {
            "count": 6,
            "max_model_len": 512,
            "tokens": tokenizer.encode("héllo", add_special_tokens=True),
        }
        assert (await post(client, TOKENIZE, {"messages": HELLO}))["tokens"] == tokenizer.encode_chat(HELLO)
        await post(client, CHAT, chat())
        async with client.post("/reset_prefix_cache") as response:
            assert response.status == 200
        reply = await post(client, CHAT, chat())
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    serving(tiny_folder, scenario)


def test_metrics(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        usage = [(await post(client, CHAT, chat()))["usage"] for _ in range(2)]
        async with client.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        values = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
        label = '{model_name="tiny"}'
        prompts = sum(one["prompt_tokens"] for one in usage)
        expected = {
            "num_requests_running": 0,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0,
            "prefix_cache_queries_total": prompts,
            "prefix_cache_hits_total": 16,
            "prompt_tokens_total": prompts,
            "generation_tokens_total": 16,
            "num_preemptions_total": 0,
            "time_to_first_token_seconds_count": 2,
        }
        assert {name: values[f"vllm:{name}{label}"] for name in expected} == expected
        assert values[f"vllm:time_to_first_token_seconds_sum{label}"] > 0

    serving(tiny_folder, scenario)


def test_many_at_once(tiny_folder: Path) -> None:
    """Under pressure each still gets its own reply."""

    async def scenario(client: ClientSession, runner: EngineRunner) -> None:
        bodies = [completion(prompt=f"{number % 5} is the number", max_tokens=30) for number in range(40)]
        replies = await asyncio.gather(*(post(client, COMPLETIONS, body) for body in bodies))
        texts = [reply["choices"][0]["text"] for reply in replies]
        assert texts == texts[:5] * 8
        assert runner.stats().preemptions > 0
        await eventually(lambda: runner.load() == EngineLoad())

    serving(tiny_folder, scenario, kv_cache_tokens=256, max_context_tokens=128)
