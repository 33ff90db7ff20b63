"""What the engine's API refuses, and the words it uses."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from tests.worker.engine.test_server import CHAT, COMPLETIONS, HELLO, TOKENIZE, chat, completion, post, serving
from worker.engine.runner import EngineRunner
from worker.events import EngineLoad

BAD_BODIES: list[tuple[str, Any, str | None, str]] = [
    (CHAT, [], None, "must be a JSON object"),
    (CHAT, {"model": "tiny"}, "messages", "Field required"),
    (CHAT, chat(messages="hi"), "messages", "valid list"),
    (CHAT, chat(messages=[]), "messages", "at least 1"),
    (CHAT, chat(messages=["hi"]), "messages", "valid dictionary"),
    (CHAT, chat(messages=[{"content": "hi"}]), "messages", r"messages[0].role must be a string"),
    (CHAT, chat(messages=[{"role": "user", "content": 5}]), "messages", "messages[0].content must be"),
    (CHAT, chat(messages=[{"role": "user", "content": ["hi"]}]), "messages", "messages[0].content[0] must be"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages", "takes text only"),
    (CHAT, chat(messages=[{"role": "forbidden", "content": ""}]), "messages", "no such role"),
    (CHAT, chat(model=["tiny"]), "model", "valid string"),
    (CHAT, chat(tools="t"), "tools", "valid list"),
    (CHAT, chat(n=2), "n", "n must be 1"),
    (CHAT, chat(logprobs=True), "logprobs", "not given by this engine"),
    (COMPLETIONS, completion(logprobs=3), "logprobs", "not given by this engine"),
    (CHAT, chat(response_format={"type": "json_object"}), "response_format", "must be text"),
    (CHAT, chat(stream="yes"), "stream", "valid boolean"),
    (CHAT, chat(stream_options={"include_usage": 1}), "stream_options", "valid boolean"),
    (CHAT, chat(temperature="hot"), "temperature", "valid number"),
    (CHAT, chat(temperature=2.1), "temperature", "less than or equal to 2"),
    (CHAT, chat(temperature=-0.1), "temperature", "greater than or equal to 0"),
    (CHAT, chat(top_p=0), "top_p", "greater than 0"),
    (CHAT, chat(seed=1.5), "seed", "valid integer"),
    (CHAT, chat(seed=2**63), "seed", "seed"),
    (CHAT, chat(max_tokens=0), "max_tokens", "greater than or equal to 1"),
    (CHAT, chat(max_tokens=True), "max_tokens", "valid integer"),
    (CHAT, chat(max_completion_tokens="8"), "max_completion_tokens", "valid integer"),
    (CHAT, chat(stop=5), "stop", "valid string"),
    (CHAT, chat(stop=["a", ""]), "stop", "1 to 256 characters"),
    (CHAT, chat(stop=["a"] * 17), "stop", "at most 16"),
    (CHAT, chat(cache_salt=""), "cache_salt", "at least 1 character"),
    (COMPLETIONS, {"model": "tiny"}, "prompt", "Field required"),
    (COMPLETIONS, completion(prompt=""), "prompt", "at least 1 character"),
    (COMPLETIONS, completion(prompt=[]), "prompt", "prompt"),
    (COMPLETIONS, completion(prompt=["a", "b"]), "prompt", "prompt"),
    (COMPLETIONS, completion(prompt=[1.5]), "prompt", "prompt"),
    (COMPLETIONS, completion(prompt=[-1]), "prompt", "prompt"),
    (COMPLETIONS, completion(prompt=[259]), "prompt", "token ids must lie in 0..258"),
    (COMPLETIONS, completion(prompt=[2**40]), "prompt", "token ids must lie in 0..258"),
    (TOKENIZE, {"model": "tiny"}, "prompt", "either prompt or messages"),
    (TOKENIZE, {"prompt": "a", "messages": HELLO}, "prompt", "either prompt or messages"),
]


def test_bad_bodies_name_the_field(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, runner: EngineRunner) -> None:
        for path, body, param, message in BAD_BODIES:
            error = (await post(client, path, body, 400))["error"]
            assert error.keys() == {"message", "type", "param", "code"}, body
            assert (error["type"], error["param"]) == ("invalid_request_error", param), (body, error)
            assert message in error["message"], error
        for raw in (b"", b"{", b'{"model": "\\ud800"}', b"[" * 5000, b'{"prompt": NaN}', b"\xff"):
            async with client.post(COMPLETIONS, data=raw) as response:
                assert response.status == 400, raw
                assert "not valid JSON" in (await response.json())["error"]["message"]
        assert runner.load() == EngineLoad()
        assert runner.healthy

    serving(tiny_folder, scenario)


def test_good_but_unusual_bodies(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        text = await post(client, CHAT, chat(messages=[{"role": "user", "content": "a\nb"}]))
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        split = await post(client, CHAT, chat(messages=[{"role": "user", "content": parts}]))
        assert split["choices"] == text["choices"]
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "not JSON"}}
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        await post(client, CHAT, chat(messages=[*HELLO, called], tools=[{"function": {"name": "f", "more": 1}}]))
        nulls = dict.fromkeys(["temperature", "top_p", "seed", "stop", "n", "stream", "stream_options", "cache_salt"])
        await post(client, CHAT, chat(**nulls))
        newer = await post(client, CHAT, chat(max_completion_tokens=3))
        assert newer["usage"]["completion_tokens"] == 3
        without_model = chat()
        del without_model["model"]
        await post(client, CHAT, without_model)

    serving(tiny_folder, scenario)


def test_other_refusals(tiny_folder: Path) -> None:
    async def scenario(client: ClientSession, _runner: EngineRunner) -> None:
        error = (await post(client, CHAT, chat(model="gpt-5"), 404))["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert "'tiny'" in error["message"]
        for path, body, param in (
            (COMPLETIONS, completion(prompt=[1] * 512), "prompt"),
            (COMPLETIONS, completion(prompt=[1] * 500, max_tokens=13), "prompt"),
            (CHAT, chat(messages=[{"role": "user", "content": "long" * 5000}]), "messages"),
        ):
            error = (await post(client, path, body, 400))["error"]
            assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert "http_error" in (await post(client, "/v1/embeddings", {}, 404))["error"]["code"]
        async with client.get(CHAT) as response:
            assert response.status == 405
            assert response.content_type == "application/json"
        async with client.post(CHAT, data=io.BytesIO(b" " * 9_000_000)) as response:
            assert response.status == 413
            assert response.content_type == "application/json"

    serving(tiny_folder, scenario)
