"""Prompts of every API that generates are keyed: the second time they are expected where they went the first time."""

from __future__ import annotations

import pytest

from gateway.prompts.keyer import PromptKeyer
from indexer.keys import chain, root
from tests.gateway.http.support import plain, replying, run, worker
from tests.gateway.requests.support import as_json
from tests.gateway.support import gate
from worker.model_cache import ensure_model

LONG = "A sentence that fills index blocks when it is repeated. " * 30
TURN = {"role": "user", "content": LONG}


@pytest.fixture(scope="module")
def keyer() -> PromptKeyer:
    return PromptKeyer.from_folder(ensure_model(), budget_seconds=10)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [TURN]}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": [LONG, "short"]}),
        ("/v1/completions", {"prompt": list(range(300))}),
        ("/v1/responses", {"input": LONG}),
        ("/v1/responses", {"instructions": "Be brief.", "input": [TURN]}),
        ("/v1/messages", {"max_tokens": 1, "system": "Be brief.", "messages": [TURN]}),
    ],
)
def test_a_repeated_prompt_matches(keyer: PromptKeyer, path: str, body: dict) -> None:
    async def scenario() -> None:
        async with worker(replying(plain(b"{}"))) as engine, gate(engine.port, keyer=keyer) as gateway:
            first, second = [await gateway.ask("POST", path, {"model": "m", **body}) for _ in range(2)]
            assert (first.status, second.status) == (200, 200)
            assert first.header(b"x-warmroute-matched-tokens") == b"0"
            assert int(second.header(b"x-warmroute-matched-tokens") or 0) >= 128

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/responses", {"input": LONG, "prompt": {"id": "p"}}, "stored"),
        ("/v1/messages", {"messages": [TURN, {"role": "system", "content": "x"}]}, "inline_system"),
        ("/v1/chat/completions", {"messages": [TURN], "chat_template": "x"}, "template"),
        ("/v1/completions", {"prompt": LONG, "prompt_embeds": "AAAA"}, "embeds"),
        ("/v1/embeddings", {"input": LONG}, "path"),
    ],
)
def test_what_is_not_keyed_goes_by_load_and_is_counted(keyer: PromptKeyer, path: str, body: dict, reason: str) -> None:
    async def scenario() -> None:
        async with worker(replying(plain(b"{}"))) as engine, gate(engine.port, keyer=keyer) as gateway:
            answer = await gateway.ask("POST", path, {"model": "m", **body})
            assert answer.status == 200
            assert gateway.count("load_only_total", pool="p", reason=reason) == 1

    run(scenario())


def test_an_adapters_prompts_meet_its_own_blocks(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(as_json(b"{}"))) as one,
            worker(replying(as_json(b"{}"))) as two,
            gate(one.port, two.port, keyer=keyer, aliases={"public": "lora"}, several=False) as gateway,
        ):
            text = "word " * 300
            seed = root(gateway.pool.fingerprint, adapter="lora", salt="s")
            keys = chain(keyer.tokenizer.encode(text, add_special_tokens=True), seed, block_tokens=64)
            gateway.pool.hold("w1", keys)
            for model, matches in (("public", True), ("m", False)):
                body = {"model": model, "prompt": text, "cache_salt": "s"}
                answer = await gateway.ask("POST", "/v1/completions", body)
                matched = int(answer.header(b"x-warmroute-matched-tokens") or 0)
                assert (matched > 200) is matches
                if matches:
                    assert answer.header(b"x-warmroute-worker") == b"w1"

    run(scenario())
