"""The public port's routes and what is counted, with scripted workers behind the real router and relay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from gateway.prompts.keyer import PromptKeyer
from tests.gateway.http.support import SSE_HEAD, chunk, client, plain, replying, run, worker
from tests.gateway.support import gate
from worker.model_cache import ensure_model

USAGE = b'{"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":64}}}'
CHAT = {"model": "m", "messages": [{"role": "user", "content": "word " * 200}]}


@pytest.fixture(scope="module")
def keyer() -> PromptKeyer:
    return PromptKeyer.from_folder(ensure_model(), budget_seconds=10)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("POST", "/health", 405),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/m", 200),
        ("GET", "/v1/models/org/other@x%20y", 200),
        ("GET", "/v1/models/none", 404),
        ("DELETE", "/v1/models/m", 405),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/nothing", 404),
        ("POST", "/v1/audio/../../reset_prefix_cache", 404),
        ("POST", "/reset_prefix_cache", 404),
        ("GET", "/v1/embeddings", 405),
        ("POST", "/v1/responses/resp_1", 405),
        ("GET", "/v1/responses/resp_1/cancel", 405),
        ("GET", "/", 404),
    ],
)
def test_routes(method: str, path: str, status: int) -> None:
    async def scenario() -> None:
        async with gate() as gateway:
            answer = await gateway.ask(method, path)
            assert answer.status == status
            if status >= 400:
                assert set(orjson.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
            assert gateway.count("requests_total", pool="", code=str(status)) == 1

    run(scenario())


def test_a_reply_is_counted_where_it_belongs(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        async with worker(replying(plain(USAGE))) as engine, gate(engine.port, keyer=keyer) as gateway:
            answer = await gateway.ask("POST", "/v1/chat/completions", CHAT)
            assert answer.status == 200
            assert answer.body == USAGE
            assert answer.header(b"x-warmroute-worker") == b"w0"
            again = await gateway.ask("POST", "/v1/chat/completions", CHAT)
            matched = int(again.header(b"x-warmroute-matched-tokens") or 0)
            assert matched > 100
            assert gateway.count("requests_total", pool="p", code="200") == 2
            assert gateway.count("prompt_tokens_total", pool="p") == 200
            assert gateway.count("cached_tokens_total", pool="p") == 128
            assert gateway.count("matched_tokens_total", pool="p") == matched
            assert gateway.count("keyed_tokens_total", pool="p") > 2 * matched - 64
            assert gateway.count("first_byte_seconds_count", pool="p") == 2
            assert gateway.count("route_seconds_count", pool="p") == 2
            assert gateway.count("load_only_total", pool="p", reason="budget") == 0
            assert gateway.idle()

    run(scenario())


@pytest.mark.parametrize(
    "reply",
    [
        plain(b'{"error":{}}', b"400 Bad Request"),
        plain(b"no", b"500 Internal Server Error"),
        SSE_HEAD + chunk(b"data: " + USAGE + b"\n\n"),
    ],
)
def test_what_did_not_complete_earns_no_credit(keyer: PromptKeyer, reply: bytes) -> None:
    """A refusal, an error, a stream that breaks off after its first event: no tokens counted, nothing expected."""

    async def scenario() -> None:
        async def script(link) -> None:
            await link.request()
            await link.send(reply)

        async with worker(script) as engine, gate(engine.port, keyer=keyer) as gateway:
            async with client(gateway.server.port) as connected:
                data = orjson.dumps(CHAT)
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                connected.send(head + data)
                await asyncio.wait_for(connected.reader.readuntil(b"\r\n\r\n"), 10)
                async with asyncio.timeout(10):
                    while not gateway.idle():
                        await asyncio.sleep(0)
            for name in ("prompt_tokens_total", "cached_tokens_total", "matched_tokens_total", "keyed_tokens_total"):
                assert gateway.count(name, pool="p") == 0
            assert gateway.pool.router.state.predictions.keys == 0

    run(scenario())


@pytest.mark.parametrize("usage", [b'"oops"', b'{"prompt_tokens":"1024"}', b"null", b'{"prompt_tokens":7}'])
def test_a_malformed_usage_passes_through_and_is_not_counted(usage: bytes) -> None:
    async def scenario() -> None:
        body = b'{"usage":' + usage + b"}"
        async with worker(replying(plain(body))) as engine, gate(engine.port) as gateway:
            assert (await gateway.ask("POST", "/v1/chat/completions", CHAT)).body == body
            assert gateway.count("cached_tokens_total", pool="p") == 0

    run(scenario())


def test_no_worker_is_503_and_counted_for_the_pool() -> None:
    async def scenario() -> None:
        async with gate() as gateway:
            answer = await gateway.ask("POST", "/v1/chat/completions", CHAT)
            assert answer.status == 503
            assert gateway.count("requests_total", pool="p", code="503") == 1
            assert gateway.count("load_only_total", pool="p", reason="no_tokenizer") == 1

    run(scenario())


def test_an_unkeyed_prompt_books_its_estimated_length() -> None:
    keyer = PromptKeyer.from_folder(ensure_model(), budget_seconds=0)

    async def scenario() -> None:
        async def script(link) -> None:
            await link.request()
            await asyncio.Event().wait()

        async with worker(script) as engine, gate(engine.port, keyer=keyer) as gateway:
            text = "".join(f"w{number} " for number in range(20_000))
            ask = asyncio.ensure_future(gateway.ask("POST", "/v1/completions", {"model": "m", "prompt": text}))
            async with asyncio.timeout(10):
                while gateway.idle():
                    await asyncio.sleep(0.01)
            assert gateway.pool.router.state.reservations.of("w0").pending_tokens == pytest.approx(
                len(text) / 4, rel=0.01
            )
            ask.cancel()
            await asyncio.gather(ask, return_exceptions=True)
            async with asyncio.timeout(10):
                while not gateway.idle():
                    await asyncio.sleep(0)

    try:
        run(scenario())
    finally:
        keyer.close()


def test_an_empty_prompt_matches_nothing(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        async with worker(replying(plain(b"{}"))) as engine, gate(engine.port, keyer=keyer) as gateway:
            answer = await gateway.ask("POST", "/v1/completions", {"model": "m", "prompt": ""})
            assert (answer.status, answer.header(b"x-warmroute-matched-tokens")) == (200, b"0")

    run(scenario())


def test_a_failure_of_our_own_is_a_500_and_counted_as_one() -> None:
    async def scenario() -> None:
        async with gate() as gateway:
            gateway.pool.router.clock = lambda: 1 / 0
            answer = await gateway.ask("POST", "/v1/chat/completions", CHAT)
            assert answer.status == 500
            assert gateway.count("requests_total", pool="", code="500") == 1

    run(scenario())


def test_a_compressed_body_is_refused_here() -> None:
    async def scenario() -> None:
        async with gate() as gateway, client(gateway.server.port) as connected:
            lines = [b"POST /v1/chat/completions HTTP/1.1", b"Host: x", b"Content-Encoding: gzip", b"Content-Length: 2"]
            head = b"\r\n".join([*lines, b"", b"{}"])
            answer = await connected.ask(head)
            assert answer.status == 415

    run(scenario())


def test_requests_refused_by_the_entrypoint_are_counted() -> None:
    async def scenario() -> None:
        async with gate() as gateway, client(gateway.server.port) as connected:
            answer = await connected.ask(b"GARBAGE\r\n\r\n")
            assert answer.status == 400
            assert gateway.count("requests_total", pool="", code="400") == 1

    run(scenario())


def test_a_client_that_leaves_is_counted_as_499() -> None:
    async def scenario() -> None:
        async def script(link) -> None:
            await link.request()
            await link.peer_gone()

        async with worker(script) as engine, gate(engine.port) as gateway:
            async with client(gateway.server.port) as connected:
                data = orjson.dumps(CHAT)
                connected.send(
                    f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                    + data
                )
                async with asyncio.timeout(10):
                    while gateway.idle():
                        await asyncio.sleep(0)
                connected.leave()
            async with asyncio.timeout(10):
                while not gateway.count("requests_total", pool="p", code="499"):
                    await asyncio.sleep(0)
            assert gateway.idle()

    run(scenario())


def test_a_folder_without_tokenizer_is_routed_by_load(tmp_path: Path) -> None:
    from gateway.process.gateway import Gateway
    from warmroute.config.gateway import GatewayConfig
    from warmroute.config.model import RedisConfig
    from warmroute.redis.client import connect

    pools = [{"model": "m", "model_path": str(tmp_path), "workers": [{"address": "127.0.0.1:1"}]}]
    gateway = Gateway(GatewayConfig(pools=pools), connect(RedisConfig()))
    assert gateway.pools["m"].keyer is None
