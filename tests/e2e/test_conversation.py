"""Conversations through real processes: the index finds the warm worker, whatever happens around it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
import yaml

from gateway.process.gateway import Gateway
from tests.e2e.support import Conversation, port_of, run
from tests.indexer.support import running
from tests.support import eventually
from warmroute.cli.stack import MODEL, POOL, Stack
from warmroute.config.model import Config
from warmroute.redis.client import connect

pytestmark = pytest.mark.timeout(300)
INDEX_BLOCK = 64


@asynccontextmanager
async def fresh_gateway(stack: Stack) -> AsyncIterator[Gateway]:
    """A second gateway on the same index, that has seen no request."""
    settings = yaml.safe_load((stack.log_folder / "gateway.yaml").read_text())
    config = Config.model_validate(settings)
    redis = connect(config.redis)
    gateway = Gateway(config.gateway.model_copy(update={"port": 0, "admin_port": 0}), redis)
    try:
        await gateway.server.start()
        async with running(*gateway.tasks()):
            await eventually(lambda: gateway.readiness()[0], within=30)
            yield gateway
    finally:
        await gateway.stop()
        await redis.aclose()


async def indexed(gateway: Gateway, conversation: Conversation, tokens: int) -> bool:
    """Whether the index expects at least so many of the conversation's tokens on some worker."""
    pool = gateway.pools[MODEL]
    import orjson

    from gateway.prompts.body import BodyKind, parse_body

    body = orjson.dumps({"model": MODEL, "messages": conversation.messages, "cache_salt": conversation.salt})
    space = pool.router.census.current().space
    if pool.keyer is None or space is None:  # no worker of the pool has said Hello yet
        return False
    prompt = await pool.keyer.key(parse_body(body, BodyKind.CHAT), space)
    return any(
        match.blocks * INDEX_BLOCK >= tokens for match in pool.router.state.index.mirror.match(prompt.keys).values()
    )


def test_turns_go_to_the_warm_worker_and_predictions_hold(stack: Stack) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        talk = Conversation(port_of(stack))
        async with fresh_gateway(stack) as watcher:
            first = await talk.say(session, "Who jumps?")
            assert (first.matched, first.cached) == (0, 0)
            for question in ("Over whom?", "Where does the river run?", "How?"):
                await eventually(partial(indexed, watcher, talk, first.prompt - INDEX_BLOCK))
                reply = await talk.say(session, question)
                assert reply.worker == first.worker
                assert reply.matched > 0
                assert abs(reply.matched - reply.cached) <= INDEX_BLOCK

    run(scenario)


def test_another_salt_shares_nothing(stack: Stack) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        one, other = Conversation(port_of(stack)), Conversation(port_of(stack))
        await one.say(session, "Who jumps?")
        reply = await other.say(session, "Who jumps?")
        assert (reply.matched, reply.cached) == (0, 0)

    run(scenario)


def test_a_gateway_started_after_turn_two_sends_turn_three_to_the_warm_worker(stack: Stack) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        talk = Conversation(port_of(stack))
        await talk.say(session, "Who jumps?")
        second = await talk.say(session, "Over whom?")
        async with fresh_gateway(stack) as gateway:
            await eventually(partial(indexed, gateway, talk, second.prompt - INDEX_BLOCK))
            talk.port = gateway.server.port
            third = await talk.say(session, "Where does the river run?")
            # Nobody gave it a tokenizer.
            assert gateway.readiness()[1]["pools"][POOL]["tokenizer"].startswith("the workers' files")
            assert gateway.readiness()[1]["pools"][POOL]["encoder"] == "tiktoken"
            assert third.worker == second.worker
            assert third.matched >= second.prompt - INDEX_BLOCK
            assert abs(third.matched - third.cached) <= INDEX_BLOCK

    run(scenario)


def test_after_a_reset_of_the_workers_cache_nothing_matches(stack: Stack) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        async with fresh_gateway(stack) as gateway:
            talk = Conversation(gateway.server.port)
            first = await talk.say(session, "Who jumps?")
            await eventually(partial(indexed, gateway, talk, first.prompt - INDEX_BLOCK))
            for ports in stack.plan.workers:
                async with session.post(f"http://127.0.0.1:{ports.main}/reset_prefix_cache") as response:
                    assert response.status == 200
            mirror = gateway.pools[MODEL].router.state.index
            await eventually(lambda: mirror.mirror.tier_size("device") == 0)
            router = gateway.pools[MODEL].router

            def expired() -> bool:
                router.state.predictions.expire(router.clock())
                return router.state.predictions.keys == 0

            await eventually(expired)
            second = await talk.say(session, "Over whom?")
            assert (second.matched, second.cached) == (0, 0)

    run(scenario)


def test_streams_carry_usage_and_end_with_done(stack: Stack) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Count to three."}],
            "max_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"http://127.0.0.1:{port_of(stack)}/v1/chat/completions"
        async with session.post(url, json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            text = await response.text()
        assert text.endswith("data: [DONE]\n\n")
        assert '"prompt_tokens_details":{"cached_tokens":' in text.replace(" ", "")

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/v1/chat/completions", "{", 400, None),
        ("POST", "/v1/chat/completions", '{"model": 7}', 400, "model"),
        ("POST", "/v1/chat/completions", '{"model": "gpt-9"}', 404, "model"),
        ("POST", "/v1/chat/completions", f'{{"model": "{MODEL}", "messages": "x"}}', 400, "messages"),
        ("POST", "/v1/chat/completions", f'{{"model": "{MODEL}", "messages": []}}', 400, "messages"),
        ("GET", "/v1/chat/completions", None, 405, None),
        ("POST", "/v1/models", "", 405, None),
        ("GET", "/v1/models/gpt-9", None, 404, "model"),
        ("POST", "/v1/embeddings", "{}", 400, "model"),
        ("POST", "/v1/nothing", "{}", 404, None),
    ],
)
def test_bad_requests_get_openai_errors(
    stack: Stack, method: str, path: str, body: str | None, status: int, param: str | None
) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        url = f"http://127.0.0.1:{port_of(stack)}{path}"
        async with session.request(method, url, data=body, headers={"content-type": "application/json"}) as response:
            assert response.status == status
            error = (await response.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"]
            assert error["param"] == param

    run(scenario)


def test_models_and_health_are_answered_here(stack: Stack) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        url = f"http://127.0.0.1:{port_of(stack)}"
        async with session.get(f"{url}/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == [MODEL]
        async with session.get(f"{url}/v1/models/{MODEL}") as response:
            assert (await response.json())["id"] == MODEL
        async with session.get(f"{url}/health") as response:
            assert response.status == 200

    run(scenario)


def test_metrics_tell_what_happened(stack: Stack) -> None:
    async def scenario(session: aiohttp.ClientSession) -> None:
        talk = Conversation(port_of(stack))
        await talk.say(session, "Who jumps?")
        admin = stack.plan.gateways[0][2].admin
        async with session.get(f"http://127.0.0.1:{admin}/metrics") as response:
            text = await response.text()
        assert 'warmroute_gateway_requests_total{code="200",pool="default"}' in text
        assert 'warmroute_gateway_workers{pool="default",state="ready"} 3.0' in text
        assert "warmroute_mirror_keys" in text
        for ports in stack.plan.workers:
            async with session.get(f"http://127.0.0.1:{ports.main}/metrics") as response:
                assert "vllm:num_requests_running" in await response.text()

    run(scenario)
