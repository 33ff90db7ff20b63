"""What a request costs its tenant when the reply does not come to its usage, or hides it."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from tests.gateway.http.support import SSE_HEAD, Link, Message, chunk, client, plain, replying, run, worker
from tests.gateway.requests.support import CHAT, as_json, bearer, limited
from tests.gateway.support import Gate, gate
from tests.support import eventually

LIMIT = 1000
LARGE = {**CHAT, "user": "x" * 2000}
"""About 500 tokens: half of the limit, so that a minute's refill within the test does not let it in."""


async def is_refused(gateway: Gate) -> bool:
    return (await gateway.ask("POST", "/v1/chat/completions", LARGE, bearer("a"))).status == 429


def test_leaving_before_the_usage_comes_is_not_for_free(redis_url: str, tmp_path: Path) -> None:
    events = LIMIT - 100

    async def script(link: Link) -> None:
        await link.request()
        await link.send(SSE_HEAD + b"".join([chunk(b'data: {"choices":[{"text":"tok"}]}\n\n')] * events))
        await link.peer_gone()

    async def scenario() -> None:
        async with (
            worker(script) as engine,
            limited(redis_url, tmp_path, tokens_per_minute=LIMIT) as access,
            gate(engine.port, access=access) as gateway,
        ):
            async with client(gateway.server.port) as user:
                body = b'{"model":"m","prompt":"x","stream":true}'
                head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{bearer('a')[0]}\r\nContent-Length: {len(body)}"
                user.send(head.encode() + b"\r\n\r\n" + body)
                assert (await user.head()).status == 200
                data = b""
                while data.count(b"tok") < events:
                    data += await user.reader.read(65_536)
                user.leave()
            await eventually(gateway.idle)
            assert await is_refused(gateway)

    run(scenario())


def test_leaving_while_a_worker_computes_the_first_byte_is_not_for_free(redis_url: str, tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def script(link: Link) -> None:
        await link.request()
        asked.set()
        await link.peer_gone()

    async def scenario() -> None:
        async with (
            worker(script) as engine,
            limited(redis_url, tmp_path, tokens_per_minute=LIMIT) as access,
            gate(engine.port, access=access) as gateway,
        ):
            async with client(gateway.server.port) as user:
                body = b'{"model":"m","prompt":"%b"}' % (b"x" * 3200)
                head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{bearer('a')[0]}\r\nContent-Length: {len(body)}"
                user.send(head.encode() + b"\r\n\r\n" + body)
                await asked.wait()
                user.leave()
            await eventually(gateway.idle)
            assert await is_refused(gateway)

    run(scenario())


def compressed() -> bytes:
    text = "".join(f"{number:x} " for number in range(2500))
    body = gzip.compress(b'{"text":"%b","usage":{"prompt_tokens":5,"completion_tokens":2500}}' % text.encode())
    assert len(body) > 4 * LIMIT
    return plain(body, headers=b"Content-Encoding: gzip\r\n")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(as_json(b'{"usage":{"prompt_tokens":5,"completion_tokens":900},"user":"usage"}'), id="user"),
        pytest.param(
            as_json(b'{"usage":{"prompt_tokens":5,"completion_tokens":900},"user":"%b"}' % (b"x" * 9000)),
            id="pushed out",
        ),
        pytest.param(compressed(), id="compressed"),
    ],
)
def test_a_usage_that_is_hidden_or_lost_is_not_for_free(reply: bytes, redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(reply)) as engine,
            limited(redis_url, tmp_path, tokens_per_minute=LIMIT) as access,
            gate(engine.port, access=access) as gateway,
        ):
            headers = [*bearer("a"), "Accept-Encoding: gzip"]
            assert (await gateway.ask("POST", "/v1/chat/completions", CHAT, headers)).status == 200
            await eventually(gateway.idle)
            assert await is_refused(gateway)

    run(scenario())


def test_a_refused_request_costs_no_tokens(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        refusal = as_json(b'{"error":"%b"}' % (b"x" * 8000), b"400 Bad Request")

        async def script(link: Link) -> None:
            while True:
                asked: Message = await link.request()
                await link.send(as_json(b"{}") if b"xxx" in asked.body else refusal)

        async with (
            worker(script) as engine,
            limited(redis_url, tmp_path, tokens_per_minute=LIMIT) as access,
            gate(engine.port, access=access) as gateway,
        ):
            assert (await gateway.ask("POST", "/v1/chat/completions", CHAT, bearer("a"))).status == 400
            assert not await is_refused(gateway)

    run(scenario())
