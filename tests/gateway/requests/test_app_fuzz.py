"""Damaged bodies through a socket: never a 5xx, always an answer in the path's shape, and nothing left booked.

WARMROUTE_FUZZ_INPUTS says how many; a failure names the seed and the body.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from random import Random
from typing import Any

import orjson
import pytest

from gateway.prompts.keyer import PromptKeyer
from gateway.requests.access import Access
from gateway.requests.paths import POST_ROUTES
from gateway.tenants.salts import Salts
from tests.gateway.http.support import client, plain, replying, run, worker
from tests.gateway.support import Gate, gate
from worker.model_cache import ensure_model

INPUTS = int(os.environ.get("WARMROUTE_FUZZ_INPUTS", "10000"))
CLIENTS = 8
FORM_TYPE = b"multipart/form-data; boundary=xyz"

STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 10**40, -(2**63), 1e308, "", "m", "public", "none", "\ud800", "\0", "é" * 50),
    *([], {}, [[]], [{}], [None], {"": {}}, ["m"], {"role": "user"}, [{"role": "user", "content": [{"type": "text"}]}]),
    *([1, 2, 3], [-1], [2**32], [[1], [2]], ["a", 1], [{"role": 1, "content": 2}], [{"content": "\ud83d"}]),
]
SEEDS: list[dict[str, Any]] = [
    {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0.5},
    {"model": "public", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "stream": True},
    {"model": "m", "prompt": "once upon a time", "stream": True, "stream_options": {"include_usage": False}},
    {"model": "m", "prompt": [1, 2, 3, 4], "cache_salt": "s", "priority": 3, "session_id": "x", "workflow": {"id": 1}},
    {"model": "m", "input": "text", "previous_response_id": "resp_1", "stream": True},
    {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {}}]},
    {"model": "m", "query": "q", "documents": ["a", "b"], "chat_template_kwargs": {"a": 1}},
]
FORM = (
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\0\xff\r\n'
    b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--xyz--\r\n'
)


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def request(self) -> tuple[str, bytes, bytes]:
        """Path, content type, body."""
        random = self.random
        path = random.choice(list(POST_ROUTES))
        if POST_ROUTES[path].form and random.random() < 0.5:
            return path, FORM_TYPE, self.damaged(FORM)
        fields = dict(random.choice(SEEDS))
        for _ in range(random.choice((0, 1, 1, 2, 5))):
            self.change(fields)
        body = json.dumps(fields, ensure_ascii=random.random() < 0.7).encode("utf-8", "surrogatepass")
        if random.random() < 0.1:
            body = self.doubled(body)
        if random.random() < 0.4:
            body = self.damaged(body)
        return path, b"application/json", body

    def change(self, fields: dict[str, Any]) -> None:
        random = self.random
        names = [
            *list(fields),
            "model",
            "stream",
            "stream_options",
            "cache_salt",
            "messages",
            "prompt",
            "priority",
            "n",
        ]
        name = random.choice(names)
        kind = random.random()
        if kind < 0.2:
            fields.pop(name, None)
        elif kind < 0.3:
            depth = random.choice((3, 50, 400, 2000))
            fields[name] = json.loads("[" * min(depth, 400) + "]" * min(depth, 400))
        else:
            fields[name] = random.choice(STRANGE)

    def doubled(self, body: bytes) -> bytes:
        """With one key twice, spelled two ways."""
        name = self.random.choice([b'"model"', b'"mod\\u0065l"', b'"cache_salt"', b'"stream"', b'"stream_options"'])
        value = json.dumps(self.random.choice(STRANGE)).encode()
        return b"{" + name + b":" + value + (b"," + body[1:] if len(body) > 2 else b"}")

    def damaged(self, body: bytes) -> bytes:
        data = bytearray(body)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            place = self.random.randrange(len(data) + 1)
            match self.random.randrange(5):
                case 0:
                    del data[place : place + self.random.choice((1, 3, 30))]
                case 1:
                    data[place:place] = self.random.choice(
                        (b'"', b"{", b"[", b"\\", b"\0", b"\xff", b"\xed\xa0\x80", b",")
                    )
                case 2:
                    data[place:place] = data[place : place + self.random.choice((1, 5, 40))]
                case 3 if data:
                    data[min(place, len(data) - 1)] = self.random.randrange(256)
                case _:
                    del data[place:]
        return bytes(data)


async def attack(gateway: Gate, seed: int, inputs: int, statuses: dict[int, int]) -> None:
    fuzzer = Fuzzer(seed)
    async with client(gateway.server.port) as connected:
        for number in range(inputs):
            path, kind, body = fuzzer.request()
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nContent-Type: ".encode()
            answer = await connected.ask(head + kind + b"\r\n\r\n" + body)
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
            assert answer.status < 500, (seed, number, path, body, answer)
            if answer.status >= 400:
                error = orjson.loads(answer.body)["error"]
                assert error["message"], (seed, number, path, body)
                expected = {"type", "message"} if POST_ROUTES[path].anthropic else {"message", "type", "param", "code"}
                assert set(error) == expected, (seed, number, path, body)


@pytest.mark.timeout(60 + INPUTS // 200)
def test_no_body_makes_the_gateway_fail() -> None:
    keyer = PromptKeyer.from_folder(ensure_model(), budget_seconds=1)
    reply = plain(b'{"id":"resp_1","model":"lora","choices":[],"usage":{"prompt_tokens":1}}')
    seed = int(os.environ.get("WARMROUTE_FUZZ_SEED", str(time.time_ns() % 10**9)))

    async def scenario() -> None:
        statuses: dict[int, int] = {}
        engine_reply = replying(reply.replace(b"text/plain", b"application/json"))
        async with (
            worker(engine_reply) as engine,
            gate(engine.port, keyer=keyer, aliases={"public": "lora"}, access=Access(Salts(None))) as gateway,
        ):
            for batch in range(0, INPUTS, 10_000):
                share = min(10_000, INPUTS - batch) // CLIENTS
                seeds = range(seed + batch, seed + batch + CLIENTS)
                async with asyncio.timeout(300):
                    await asyncio.gather(*(attack(gateway, number, share, statuses) for number in seeds))
                engine.requests.clear()
            assert gateway.idle()
            assert {200, 400, 404} <= set(statuses)
            assert statuses[200] > INPUTS / 10

    try:
        run(scenario(), within=60 + INPUTS / 200)
    finally:
        keyer.close()


def test_a_large_body_and_deep_nesting() -> None:
    async def scenario() -> None:
        async with worker(replying(plain(b"{}"))) as engine, gate(engine.port) as gateway:
            large = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 5_000_000}]})
            assert (await gateway.ask("POST", "/v1/chat/completions", large)).status == 200
            deep = b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
            assert (await gateway.ask("POST", "/v1/chat/completions", deep)).status == 400
            assert gateway.idle()

    run(scenario())
