"""Replies that count other tokens than the gateway: the engine is asked, or load decides; trust comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from gateway.prompts.keyer import PromptKeyer
from gateway.prompts.self_check import ASK_AGAIN_SECONDS, LEAST, WINDOW, TokenIdSource
from gateway.requests.key import logger
from gateway.routing.census.workers import State
from tests.gateway.http.support import Link, run, worker
from tests.gateway.requests.support import as_json
from tests.gateway.support import Gate, gate
from worker.model_cache import ensure_model

BODY = {"model": "m", "messages": [{"role": "user", "content": "What fills index blocks is repeated. " * 40}]}
ENGINE_IDS = list(range(1000, 1200))


@pytest.fixture(scope="module")
def keyer() -> PromptKeyer:
    return PromptKeyer.from_folder(ensure_model(), budget_seconds=10)


class Engine:
    """Counts `tokens` of every prompt; `ids` is what it renders, None where it has no such path."""

    def __init__(self, tokens: int, ids: list[int] | None, cached: int = 0) -> None:
        self.tokens = tokens
        self.ids = ids
        self.cached = cached
        self.asked: list[bytes] = []

    def script(self) -> Callable[[Link], Awaitable[None]]:
        async def answer(link: Link) -> None:
            while True:
                request = await link.request()
                path = request.start.split(b" ")[1]
                if path == b"/v1/chat/completions":
                    usage = b'"usage": {"prompt_tokens": %d, "prompt_tokens_details": {"cached_tokens": %d}}'
                    await link.send(as_json(b"{%b}" % usage % (self.tokens, self.cached)))
                    continue
                self.asked.append(path)
                if path.endswith(b"/render") and self.ids is not None:
                    await link.send(as_json(b'{"token_ids": %b}' % str(self.ids).encode()))
                else:
                    await link.send(as_json(b"{}", b"404 Not Found"))

        return answer


async def chat(gateway: Gate, times: int = 1) -> int:
    """The last reply's matched tokens."""
    for _ in range(times):
        reply = await gateway.ask("POST", "/v1/chat/completions", BODY)
        assert reply.status == 200
    return int(reply.header(b"x-warmroute-matched-tokens") or 0)


async def own_count(gateway: Gate, engine: Engine) -> int:
    """What the gateway makes of the body, in tokens."""
    before = gateway.count("keyed_tokens_total", pool="p")
    await chat(gateway)
    return round(gateway.count("keyed_tokens_total", pool="p") - before)


def mismatches(gateway: Gate) -> float:
    return gateway.pool.metric("warmroute_prompt_tokens_mismatch_total", pool="p") or 0.0


def source(gateway: Gate) -> TokenIdSource:
    prompts = gateway.app.models.only.pool.prompts
    return prompts.check.source(gateway.pool.now)


def test_the_engine_is_asked_once_its_replies_disagree_and_no_more_when_they_agree(
    keyer: PromptKeyer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        engine = Engine(0, ENGINE_IDS)
        async with worker(engine.script()) as served, gate(served.port, keyer=keyer, several=False) as gateway:
            own = await own_count(gateway, engine)
            assert mismatches(gateway) == 1
            engine.tokens = own + 1
            await chat(gateway, LEAST - 1)
            assert mismatches(gateway) == LEAST
            assert source(gateway) is TokenIdSource.ENGINE
            assert engine.asked == []
            # Its ids are another prompt's: nothing matches at first, then what was routed to it by them.
            assert await chat(gateway) == 0
            assert await chat(gateway) == len(ENGINE_IDS) // 64 * 64
            assert engine.asked == [b"/v1/chat/completions/render"] * 2
            assert gateway.count("engine_tokens_total", pool="p", outcome="told") == 2
            engine.tokens = own
            await chat(gateway, WINDOW)
            assert source(gateway) is TokenIdSource.GATEWAY
            asked = len(engine.asked)
            await chat(gateway)
            assert len(engine.asked) == asked
            assert gateway.idle()

    with caplog.at_level("INFO", logger=logger.name):
        run(scenario())
    assert [record.levelname for record in caplog.records if record.name == logger.name] == ["ERROR", "INFO"]


def test_an_engine_that_tells_none_is_left_alone_and_prompts_go_by_load(
    keyer: PromptKeyer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        engine = Engine(7, None)
        async with worker(engine.script()) as served, gate(served.port, keyer=keyer, several=False) as gateway:
            await chat(gateway, LEAST)
            await chat(gateway, 3)
            assert engine.asked == [b"/v1/chat/completions/render", b"/tokenize"]
            assert gateway.count("load_only_total", pool="p", reason="mismatch") == 3
            assert gateway.count("engine_tokens_total", pool="p", outcome="failed") == 1
            assert source(gateway) is TokenIdSource.NONE
            assert gateway.app.models.only.pool.routing.startswith("by load: replies count")
            gateway.pool.now += ASK_AGAIN_SECONDS
            await chat(gateway)
            assert engine.asked[2:] == [b"/tokenize"]

    with caplog.at_level("WARNING", logger=logger.name):
        run(scenario())
    assert [record.levelname for record in caplog.records if record.name == logger.name][:2] == ["ERROR", "WARNING"]


def test_without_a_healthy_worker_nobody_is_asked(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        engine = Engine(7, ENGINE_IDS)
        async with worker(engine.script()) as served, gate(served.port, keyer=keyer, several=False) as gateway:
            await chat(gateway, LEAST)
            (only,) = gateway.pool.router.census.workers.all
            only.healthy = False
            assert only.state(gateway.pool.now) is State.UNHEALTHY
            await chat(gateway)
            assert engine.asked == []

    run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "prompt": list(range(200))},
        {"model": "m", "prompt": ["one text", "another"]},
        {"model": "m", "prompt": "x", "add_special_tokens": False},
        {"model": "m", "prompt": "x y z", "truncate_prompt_tokens": 2, "truncation_side": "right"},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "truncate_prompt_tokens": -1},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "documents": [{"text": "x"}]},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "chat_template": "y"},
    ],
)
def test_what_tells_nothing_of_the_tokenizer_is_not_compared(keyer: PromptKeyer, body: dict) -> None:
    async def scenario() -> None:
        engine = Engine(7, ENGINE_IDS)
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"

        async def answer(link: Link) -> None:
            while True:
                await link.request()
                await link.send(as_json(b'{"usage": {"prompt_tokens": 7}}'))

        async with worker(answer) as served, gate(served.port, keyer=keyer, several=False) as gateway:
            for _ in range(LEAST):
                assert (await gateway.ask("POST", path, body)).status == 200
            assert mismatches(gateway) == 0
            assert source(gateway) is TokenIdSource.GATEWAY
        assert engine.asked == []

    run(scenario())


def test_what_no_engine_can_confirm_goes_by_load_while_the_own_count_is_not_trusted(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        engine = Engine(7, ENGINE_IDS)
        async with worker(engine.script()) as served, gate(served.port, keyer=keyer, several=False) as gateway:
            await chat(gateway, LEAST)
            assert source(gateway) is TokenIdSource.ENGINE
            reply = await gateway.ask("POST", "/v1/chat/completions", {**BODY, "truncate_prompt_tokens": -1})
            assert reply.status == 200
            assert engine.asked == []
            assert gateway.count("load_only_total", pool="p", reason="mismatch") == 1

    run(scenario())


def test_expected_cached_tokens_are_compared_with_the_replies(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        engine = Engine(7, None, cached=64)
        async with worker(engine.script()) as served, gate(served.port, keyer=keyer, several=False) as gateway:
            await chat(gateway)  # 0 expected, 64 told
            name = "warmroute_gateway_cached_tokens_error"
            assert gateway.pool.metric(f"{name}_count", pool="p") == 1
            assert gateway.pool.metric(f"{name}_bucket", pool="p", le="-256.0") == 0
            assert gateway.pool.metric(f"{name}_bucket", pool="p", le="-64.0") == 1
            engine.cached = await chat(gateway)
            before = gateway.pool.metric(f"{name}_bucket", pool="p", le="0.0") or 0
            await chat(gateway)
            assert (gateway.pool.metric(f"{name}_bucket", pool="p", le="0.0") or 0) == before + 1
            assert gateway.pool.metric(f"{name}_bucket", pool="p", le="-1.0") == 1

    run(scenario())
