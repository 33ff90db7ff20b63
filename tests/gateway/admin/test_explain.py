"""A request explained goes the way of a client's up to the choice of a worker, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.admin.explain import Explainer, Explanation
from gateway.admin.routes import client_request
from gateway.http.errors import RequestError
from gateway.prompts.keyer import PromptKeyer
from gateway.requests.stored_responses import Owner
from tests.gateway.http.support import replying, run, worker
from tests.gateway.requests.support import as_json, bearer, tenants
from tests.gateway.support import Gate, gate
from worker.model_cache import ensure_model

WORDS = "words that fill index blocks " * 40
CHAT = {"model": "m", "messages": [{"role": "system", "content": WORDS}, {"role": "user", "content": "Hello there."}]}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def keyer() -> PromptKeyer:
    return PromptKeyer.from_folder(ensure_model(), budget_seconds=10)


async def explain(gateway: Gate, fields: Any, path: str = PATH, *, tenant: str | None = None) -> Explanation:
    body = fields if isinstance(fields, bytes) else orjson.dumps(fields)
    return await Explainer(gateway.app).explain(client_request(path, {}, body), tenant)


def test_the_prompt_its_parts_and_the_worker_that_the_next_request_goes_to(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b"{}"))) as one,
            worker(replying(as_json(b"{}"))) as two,
            gate(one.port, two.port, keyer=keyer) as gateway,
        ):
            first = await gateway.ask("POST", PATH, CHAT)
            made = await explain(gateway, CHAT)
            prompt, decision = made.prompt, made.decision
            assert (made.pool, made.model, made.adapter, made.tenant) == ("p", "m", "", "anonymous")
            assert (prompt.load_only, prompt.exact, prompt.counted_by, prompt.salted) == (None, True, "gateway", False)
            assert (prompt.index_block_tokens, prompt.blocks) == (64, prompt.tokens // 64)
            assert sum(segment.tokens for segment in prompt.segments) == prompt.tokens
            assert {"messages[0] (system)", "messages[1] (user)"} <= {segment.source for segment in prompt.segments}
            assert decision.winner.worker == (first.header(b"x-warmroute-worker") or b"").decode()
            second = await gateway.ask("POST", PATH, CHAT)
            matched = int(second.header(b"x-warmroute-matched-tokens") or 0)
            assert decision.workers[0].match.matched_tokens == matched > 0
            assert decision.workers[1].match.matched_tokens == 0

    run(scenario())


def test_nothing_is_left_behind(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        async with gate(1, 2, keyer=keyer) as gateway:
            router = gateway.pool.router
            before = list(gateway.pool.registry.collect()), router.sequence, router.state.retry_budget.balance
            for body in (CHAT, {**CHAT, "model": "org/other@x y"}, {"model": "m", "messages": 1}):
                await explain(gateway, body)
            assert (list(gateway.pool.registry.collect()), router.sequence, router.state.retry_budget.balance) == before
            assert gateway.idle()
            assert router.state.predictions.keys == 0
            assert gateway.app.decisions.latest(10) == []

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "reason", "tokens"),
    [
        (PATH, {"model": "m", "messages": 1}, "malformed", 0),
        (PATH, {"model": "org/other@x y", "messages": []}, "no_tokenizer", 0),
        ("/v1/embeddings", {"model": "m", "input": "x" * 400}, "path", 106),
    ],
)
def test_why_a_prompt_has_no_keys(keyer: PromptKeyer, path: str, body: Any, reason: str, tokens: int) -> None:
    async def scenario() -> None:
        async with gate(1, keyer=keyer) as gateway:
            made = await explain(gateway, body, path)
            prompt = made.prompt
            assert (prompt.load_only, prompt.tokens, prompt.blocks, prompt.segments) == (reason, tokens, 0, None)
            assert not prompt.exact
            assert made.decision.winner.worker == "w0"

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/none", {}, 404, "path"),
        (PATH, b"{", 400, None),
        (PATH, {"messages": []}, 400, "model"),
        (PATH, {"model": "none"}, 404, "model"),
        ("/tokenize", {"prompt": "x"}, 400, "model"),
    ],
)
def test_what_would_be_refused_is_refused(path: str, body: Any, status: int, param: str | None) -> None:
    async def scenario() -> None:
        async with gate(1) as gateway:
            with pytest.raises(RequestError) as refused:
                await explain(gateway, body, path)
            assert (refused.value.status, refused.value.param) == (status, param)

    run(scenario())


def test_a_tenants_prompt_is_keyed_under_its_salt_which_is_not_told(tmp_path: Path, keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        access = tenants(tmp_path)
        async with (
            worker(replying(as_json(b"{}"))) as engine,
            gate(engine.port, keyer=keyer, access=access) as gateway,
        ):
            assert (await gateway.ask("POST", PATH, CHAT, bearer("a"))).status == 200
            salt = orjson.loads(engine.requests[0].body)["cache_salt"]
            matched = {}
            for tenant in ("a", "b"):
                made = await explain(gateway, CHAT, tenant=tenant)
                matched[tenant] = made.decision.workers[0].match.matched_tokens
                assert made.prompt.salted
                assert salt.encode() not in orjson.dumps(made)
            assert matched["a"] > 0
            assert matched["b"] == 0
            for tenant, model, status in (("none", "m", 404), ("a", "org/other@x y", 404), (None, "m", 400)):
                with pytest.raises(RequestError) as refused:
                    await explain(gateway, {**CHAT, "model": model}, tenant=tenant)
                assert refused.value.status == status
        async with gate(1, keyer=keyer) as gateway:
            with pytest.raises(RequestError, match="no tenants"):
                await explain(gateway, CHAT, tenant="a")

    run(scenario())


def test_a_stored_response_pins_its_worker() -> None:
    async def scenario() -> None:
        async with gate(1, 2) as gateway:
            gateway.app.responses.local.learn("resp_1", Owner("p", "w1", "anonymous", ""))
            gateway.app.responses.local.learn("resp_2", Owner("p", "w1", "other", ""))
            body = {"model": "m", "input": "x", "previous_response_id": "resp_1"}
            made = await explain(gateway, body, "/v1/responses")
            assert made.decision.winner.worker == "w1"
            assert [each.removed_by for each in made.decision.workers] == [None, "pinned to another"]
            with pytest.raises(RequestError) as refused:  # as a client's would be
                await explain(gateway, {**body, "previous_response_id": "resp_2"}, "/v1/responses")
            assert (refused.value.status, refused.value.param) == (404, "previous_response_id")

    run(scenario())


def test_parts_of_a_prompt_that_is_too_long_are_not_told(keyer: PromptKeyer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admin.explain.SEGMENTS_WORK", 1000)

    async def scenario() -> None:
        async with gate(1, keyer=keyer) as gateway:
            made = await explain(gateway, CHAT)
            assert made.prompt.blocks > 0
            assert made.prompt.segments is None

    run(scenario())
