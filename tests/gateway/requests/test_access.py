"""Keys, salts and limits of tenants, through the public port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from gateway.requests.paths import POST_ROUTES
from tests.gateway.http.support import Link, Message, replying, run, worker
from tests.gateway.requests.support import CHAT, as_json, bearer, limited, storing, tenants
from tests.gateway.support import gate
from tests.support import eventually


def test_keys_are_needed_and_never_reach_a_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b"{}"))) as engine,
            gate(engine.port, access=tenants(tmp_path, allow_unsalted=True), aliases={"public": "lora"}) as gateway,
        ):
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
                assert (await gateway.ask("POST", path, CHAT)).status == 401
            assert (await gateway.ask("POST", "/v1/chat/completions", CHAT, ["x-api-key: key-a"])).status == 401
            for method, path in (("GET", "/v1/models"), ("GET", "/v1/models/m"), ("GET", "/v1/responses/resp_1")):
                assert (await gateway.ask(method, path)).status == 401
                assert (await gateway.ask(method, path, None, ["x-api-key: key-a"])).status == 401
            assert (await gateway.ask("GET", "/health")).status == 200
            assert (await gateway.ask("POST", "/v1/messages", CHAT, ["x-api-key: key-a"])).status == 200
            assert (await gateway.ask("POST", "/v1/chat/completions", CHAT, bearer("a"))).status == 200
            listed = orjson.loads((await gateway.ask("GET", "/v1/models", None, bearer("a"))).body)["data"]
            assert [model["id"] for model in listed] == ["m", "public"]
            other = {"model": "org/other@x y"}
            for body in (other, {"model": "none"}):
                answer = await gateway.ask("POST", "/v1/embeddings", body, bearer("a"))
                assert answer.status == 404
                assert b"org/other@x y'," not in answer.body
            assert (await gateway.ask("POST", "/v1/embeddings", other, bearer("b"))).status == 200
            for message in engine.requests:
                assert not message.all(b"authorization")
                assert not message.all(b"x-api-key")

    run(scenario())


def salts_of(requests: list[Message]) -> list[str | None]:
    return [orjson.loads(message.body).get("cache_salt") for message in requests]


def test_tenants_have_salts_of_their_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine:
            async with gate(engine.port, access=tenants(tmp_path)) as gateway:
                for name in ("a", "b"):
                    for body in (CHAT, {**CHAT, "cache_salt": "mine"}, {**CHAT, "cache_salt": 7}):
                        await gateway.ask("POST", "/v1/chat/completions", body, bearer(name))
                salts = salts_of(engine.requests)
                assert salts[0] == salts[2]
                assert salts[3] == salts[5]
                assert len({salts[0], salts[1], salts[3], salts[4], "mine"}) == 5
            async with gate(engine.port, access=tenants(tmp_path, salts=False)) as gateway:
                engine.requests.clear()
                for body in (CHAT, {**CHAT, "cache_salt": "mine"}):
                    await gateway.ask("POST", "/v1/chat/completions", body, bearer("a"))
                assert [message.body for message in engine.requests] == [
                    orjson.dumps(body) for body in (CHAT, {**CHAT, "cache_salt": "mine"})
                ]

    run(scenario())


POOLS = ["/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score", "/classify", "/pooling"]


@pytest.mark.parametrize(
    ("engine_name", "closed"),
    [
        ("vllm", ["/v1/messages"]),
        ("sglang", ["/v1/messages", *POOLS]),
        ("tensorrt-llm", []),
        ("nobody knows", ["/v1/messages"]),
    ],
)
def test_paths_without_a_salt_are_closed_to_tenants(engine_name: str, closed: list[str], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine:
            async with gate(engine.port, access=tenants(tmp_path)) as gateway:
                gateway.pool.hold("w0", [], engine=engine_name)
                for path, route in POST_ROUTES.items():
                    engine.requests.clear()
                    answer = await gateway.ask("POST", path, CHAT, bearer("a"))
                    if path not in closed:
                        assert answer.status == 200, path
                        assert (salts_of(engine.requests) != [None]) is route.salted, path
                        continue
                    assert (answer.status, engine.requests) == (403, [])
                    error = orjson.loads(answer.body)["error"]
                    assert "tenants.allow_unsalted" in error["message"]
                    if route.anthropic:
                        assert error["type"] == "permission_error"
                    else:
                        assert error["code"] == "cache_not_isolated"
            openings = (
                {"access": tenants(tmp_path, allow_unsalted=True)},
                {"access": tenants(tmp_path, salts=False)},
                {},
            )
            for opening in openings:
                async with gate(engine.port, **opening) as gateway:
                    gateway.pool.hold("w0", [], engine=engine_name)
                    for path in closed:
                        assert (await gateway.ask("POST", path, CHAT, bearer("a"))).status == 200

    run(scenario())


def test_one_worker_whose_engine_ignores_salts_closes_the_path_for_its_pool(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine:
            ports = [engine.port] * 3
            async with gate(*ports, access=tenants(tmp_path)) as gateway:
                for name in ("w0", "w1", "w2"):
                    gateway.pool.hold(name, [], engine="vllm")
                assert (await gateway.ask("POST", "/v1/embeddings", CHAT, bearer("a"))).status == 200
                gateway.pool.hold("w2", [], engine="sglang")
                assert (await gateway.ask("POST", "/v1/embeddings", CHAT, bearer("a"))).status == 403

    run(scenario())


def test_a_worker_that_claims_another_engine_opens_no_path_where_the_pools_is_configured(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b"{}"))) as engine,
            gate(engine.port, access=tenants(tmp_path), engine="sglang") as gateway,
        ):
            gateway.pool.hold("w0", [], engine="tensorrt-llm")  # which mixes nothing
            for path in ("/v1/messages", *POOLS):
                assert (await gateway.ask("POST", path, CHAT, bearer("a"))).status == 403, path
            assert engine.requests == []

    run(scenario())


def test_a_response_is_shown_to_the_tenant_that_made_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(storing("a")) as engine,
            gate(engine.port, access=tenants(tmp_path), several=False) as gateway,
        ):
            body = {"model": "m", "input": "x"}
            assert (await gateway.ask("POST", "/v1/responses", body, bearer("a"))).status == 200
            continued = {**body, "previous_response_id": "resp_a"}
            assert (await gateway.ask("POST", "/v1/responses", continued, bearer("b"))).status == 404
            assert (await gateway.ask("GET", "/v1/responses/resp_a", None, bearer("b"))).status == 404
            assert (await gateway.ask("DELETE", "/v1/responses/resp_a", None, bearer("b"))).status == 404
            assert (await gateway.ask("GET", "/v1/responses/resp_a", None, bearer("a"))).status == 200
            assert len(engine.requests) == 2

    run(scenario())


def test_limits_refuse_with_the_time_to_wait(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b"{}"))) as engine,
            limited(redis_url, tmp_path, requests_per_minute=3) as access,
            gate(engine.port, access=access) as gateway,
        ):
            answers = [await gateway.ask("POST", "/v1/messages", CHAT, ["x-api-key: key-a"]) for _ in range(5)]
            assert [answer.status for answer in answers] == [200] * 3 + [429] * 2
            assert answers[0].header(b"x-ratelimit-limit-requests") == b"3"
            assert int(answers[3].header(b"retry-after") or 0) >= 1
            assert orjson.loads(answers[3].body)["error"]["type"] == "rate_limit_error"

    run(scenario())


def test_what_a_reply_used_is_what_counts(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        used = as_json(b'{"usage":{"prompt_tokens":600,"completion_tokens":300}}')
        async with (
            worker(replying(used)) as engine,
            limited(redis_url, tmp_path, tokens_per_minute=1000) as access,
            gate(engine.port, access=access) as gateway,
        ):
            first = await gateway.ask("POST", "/v1/chat/completions", CHAT, bearer("a"))
            large = {**CHAT, "user": "x" * 800}
            second = await gateway.ask("POST", "/v1/chat/completions", large, bearer("a"))
            assert (first.status, second.status) == (200, 429)

    run(scenario())


def test_a_slot_is_free_again_when_the_client_has_left(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async def script(link: Link) -> None:
            asked = await link.request()
            if b"wait" in asked.body:
                await link.peer_gone()
            await link.send(as_json(b"{}"))

        async with (
            worker(script) as engine,
            limited(redis_url, tmp_path, concurrent_requests=1) as access,
            gate(engine.port, access=access) as gateway,
        ):
            waiting = {**CHAT, "user": "wait"}
            first = asyncio.ensure_future(gateway.ask("POST", "/v1/chat/completions", waiting, bearer("a")))
            await eventually(lambda: engine.requests)
            second = await gateway.ask("POST", "/v1/chat/completions", CHAT, bearer("a"))
            assert second.status == 429
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await eventually(gateway.idle)

            async def served() -> bool:
                return (await gateway.ask("POST", "/v1/chat/completions", CHAT, bearer("a"))).status == 200

            await eventually(served)

    run(scenario())
