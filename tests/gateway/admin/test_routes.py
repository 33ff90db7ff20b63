"""/explain and /decisions on a gateway's admin port."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from gateway.admin.routes import client_request, read_limit
from gateway.process.gateway import Gateway
from tests.gateway.http.support import Link, client, plain, run, worker
from tests.gateway.process.test_gateway import REQUEST, healthy_then
from tests.indexer.support import running
from tests.ports import free_ports
from tests.support import eventually
from warmroute.config.gateway import GatewayConfig
from warmroute.config.model import RedisConfig
from warmroute.redis.client import connect

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
Ask = Callable[..., Any]


def fetch(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """Status and JSON; a POST with a body."""
    asked = urllib.request.Request(url, body, dict(headers or {}))  # noqa: S310  loopback
    try:
        with urllib.request.urlopen(asked, timeout=10) as response:  # noqa: S310  loopback
            return response.status, orjson.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, orjson.loads(error.read())


@asynccontextmanager
async def gateway(**fields: Any) -> AsyncIterator[tuple[Gateway, Ask]]:
    """A gateway in front of one worker, and what asks its admin port."""

    async def reply(link: Link) -> None:
        await link.send(plain(b"{}"))

    (nothing,) = free_ports(1)
    redis = connect(RedisConfig(url=f"redis://127.0.0.1:{nothing}"))
    async with worker(lambda link: healthy_then(link, reply)) as engine:
        pools = [{"model": "m", "workers": [f"127.0.0.1:{engine.port}"]}]
        gate = Gateway(GatewayConfig(port=0, indexers=[f"127.0.0.1:{nothing}"], pools=pools, **fields), redis)
        try:
            await gate.server.start()
            port = await gate.admin.start("127.0.0.1", fields.get("admin_port", 0))

            async def ask(
                path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
            ) -> tuple[int, Any]:
                return await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}{path}", body, headers)

            async with running(*gate.tasks()):
                await eventually(lambda: gate.readiness()[0])
                yield gate, ask
        finally:
            await gate.stop()
            await redis.aclose()


def test_a_request_is_explained_and_then_decided_so() -> None:
    async def scenario() -> None:
        async with gateway() as (gate, ask):
            status, answer = await ask("/explain", BODY)
            assert status == 200
            assert answer["path"] == "/v1/chat/completions"
            assert answer["routing"].startswith("by load")
            assert answer["prompt"]["load_only"] == "no_tokenizer"
            winner = answer["decision"]["winner"]["worker"]
            assert await ask("/decisions") == (200, {"decisions": []})
            async with client(gate.server.port) as connected:
                assert (await connected.ask(REQUEST)).status == 200
            status, answer = await ask("/decisions?limit=5&pool=default")
            (decided,) = answer["decisions"]
            assert (decided["worker"], decided["outcome"], decided["status"]) == (winner, "completed", 200)
            assert (await ask("/decisions?pool=none"))[1] == {"decisions": []}

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/explain?path=/v1/none", b"{}", 404, "is none of: /v1/chat/completions"),
        ("/explain?tenant=a", BODY, 400, "no tenants"),
        ("/explain", b"nonsense", 400, "not valid JSON"),
        ("/explain", b"", 400, "not valid JSON"),
        ("/decisions?limit=0", None, 400, "limit"),
        ("/decisions?limit=-1", None, 400, "limit"),
        ("/decisions?limit=x", None, 400, "limit"),
    ],
)
def test_what_cannot_be_answered_says_why(path: str, body: bytes | None, status: int, message: str) -> None:
    async def scenario() -> None:
        async with gateway() as (_, ask):
            got, answer = await ask(path, body)
            assert got == status
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert message in answer["error"]["message"]

    run(scenario())


def test_a_compressed_body_is_refused_as_a_clients_is() -> None:
    async def scenario() -> None:
        async with gateway() as (_, ask):
            status, answer = await ask("/explain", b"no gzip", {"content-encoding": "gzip"})
            assert (status, answer["error"]["code"]) == (415, "unsupported_content_encoding")

    run(scenario())


def test_a_limit_may_have_zeros_before_it() -> None:
    assert read_limit({"limit": "00000000000005"}) == 5


def test_a_header_comes_as_the_client_sends_it() -> None:
    """Else its session would be another one. aiohttp decodes headers so."""
    asked = client_request("/x", {"X-Session-ID": "caf\udce9 日本"}, b"")
    assert asked.header(b"x-session-id") == b"caf\xe9 " + "日本".encode()


def test_bodies_may_be_as_large_as_clients_may_send_them() -> None:
    async def scenario() -> None:
        async with gateway() as (_, ask):
            text = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 3_000_000}]})
            status, answer = await ask("/explain", text)
            assert (status, answer["prompt"]["load_only"]) == (200, "no_tokenizer")

    run(scenario())


def test_other_paths_than_chat() -> None:
    async def scenario() -> None:
        async with gateway() as (_, ask):
            path = urllib.parse.urlencode({"path": "/v1/embeddings"})
            status, answer = await ask(f"/explain?{path}", b'{"model": "m", "input": "x"}')
            assert (status, answer["path"], answer["prompt"]["load_only"]) == (200, "/v1/embeddings", "path")

    run(scenario())
