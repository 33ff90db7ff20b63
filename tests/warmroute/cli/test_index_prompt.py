"""Prompts from files get the gateway's keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gateway.prompts.body import BodyKind, parse_body
from gateway.prompts.keyer import KeySpace, Prompt, PromptKeyer
from indexer.keys import pool_fingerprint, prompt_keys, tokenizer_digest
from indexer.layout import WorkerFacts
from indexer.reader.mirror import Match
from warmroute.cli.index_prompt import key_prompt, key_space, named_model, parse_prompt, view_prompt
from warmroute.process.lifecycle import StartupError
from worker.model_cache import ensure_model

TEXT = "A prompt of some length, so that it fills an index block. " * 12
CHAT = {"model": "m", "messages": [{"role": "user", "content": TEXT}], "cache_salt": "s"}


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_model()


@pytest.fixture(scope="module")
def facts(folder: Path) -> WorkerFacts:
    digest = tokenizer_digest((folder / "tokenizer.json").read_bytes())
    fingerprint = pool_fingerprint(index_block_tokens=64, base_model="m", tokenizer=digest)
    return WorkerFacts("h:1", "m", "builtin", "0", 16, 64, fingerprint, publishes_events=True)


def keyed(data: bytes, workers: list[WorkerFacts], folder: Path | None) -> tuple[Prompt, KeySpace]:
    @asynccontextmanager
    async def model_folder() -> AsyncIterator[Path]:
        assert folder is not None, "token ids need no tokenizer"
        yield folder

    body, _ = parse_prompt(data, model="m")
    return asyncio.run(key_prompt(body, workers, model_folder))


@pytest.mark.parametrize("body", [CHAT, {"model": "m", "prompt": TEXT}, {**CHAT, "tools": []}])
def test_a_request_gets_the_keys_that_the_gateway_gives_it(folder: Path, facts: WorkerFacts, body: dict) -> None:
    data = orjson.dumps(body)

    async def gateway() -> object:
        keyer = PromptKeyer.from_folder(folder, budget_seconds=30)
        try:
            kind = BodyKind.CHAT if "messages" in body else BodyKind.COMPLETION
            return await keyer.key(parse_body(data, kind), KeySpace(facts.fingerprint, 64))
        finally:
            keyer.close()

    prompt, space = keyed(data, [facts], folder)
    assert prompt == asyncio.run(gateway())
    assert len(prompt.keys) > 1
    assert space == KeySpace(facts.fingerprint, 64)


def test_a_plain_text_is_a_completion_and_the_model_may_be_left_out(folder: Path, facts: WorkerFacts) -> None:
    plain = keyed(TEXT.encode(), [facts], folder)
    assert plain == keyed(orjson.dumps({"prompt": TEXT}), [facts], folder)
    assert plain != keyed(orjson.dumps({"prompt": TEXT, "cache_salt": "s"}), [facts], folder)


def test_token_ids_need_no_tokenizer(facts: WorkerFacts) -> None:
    ids = list(range(200))
    prompt, _ = keyed(orjson.dumps({"prompt": ids, "cache_salt": "s"}), [facts], None)
    assert prompt == Prompt(200, prompt_keys(ids, facts.fingerprint, salt="s"))


def test_kinds() -> None:
    assert parse_prompt(orjson.dumps(CHAT), model="m")[1] == "chat"
    assert parse_prompt(b'{"prompt": "x"}', model="m")[1] == "text"
    assert parse_prompt(b'{"prompt": [1]}', model="m")[1] == "token ids"
    assert parse_prompt(b"[1, 2]", model="m")[1] == "text"


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"{oops", "begins like a request body and is none"),
        (b'{"model": 3, "prompt": "x"}', "'model' must be the name"),
        (b"\xff\xfe", "neither JSON nor UTF-8"),
        (b'{"messages": [], "prompt": "x"}', "both messages and prompt"),
        (b'{"prompt": [1, -2]}', "token ids from 0"),
        (b'{"prompt": [1, "x"]}', "token ids from 0"),
        (b'{"prompt": ["a", "b"]}', "several prompts"),
        (b'{"other": 1}', "shapes that no engine takes"),
        (b'{"input": "x", "previous_response_id": "resp_1"}', "only the worker that answered before"),
        (b'{"messages": [{"role": "user", "content": "x"}], "chat_template": "t"}', "chat template"),
    ],
)
def test_what_has_no_keys_is_said_with_the_reason(facts: WorkerFacts, data: bytes, part: str) -> None:
    with pytest.raises(StartupError, match=part):
        keyed(data, [facts], None)


def test_most_workers_of_the_tokenizer_name_the_key_space(facts: WorkerFacts) -> None:
    digest = "0" * 64
    here = pool_fingerprint(index_block_tokens=64, base_model="m", tokenizer=digest)
    there = replace(facts, fingerprint="else")
    mine = replace(facts, fingerprint=here)
    assert key_space([there, there, mine], digest) == KeySpace(here, 64)
    assert key_space([there, there, mine], None) == KeySpace("else", 64)
    with pytest.raises(StartupError, match=r"else \(m\)"):
        key_space([there], digest)
    with pytest.raises(StartupError, match="no worker is there"):
        key_space([], None)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path, facts: WorkerFacts) -> None:
    with pytest.raises(StartupError, match=r"--model-path: .*tokenizer\.json"):
        keyed(b"text", [facts], tmp_path)


def test_the_named_model() -> None:
    assert named_model(b'{"model": "m"}') == "m"
    assert [named_model(data) for data in (b"text", b"[1]", b'{"model": 1}', b"{}")] == [None] * 4


def test_holders_are_listed_with_the_longest_match_first() -> None:
    prompt, space = Prompt(200, [1, 2, 3]), KeySpace("f", 64)
    workers = {"none": ("h:0", False), "host": ("h:1", False), "device": ("h:2", True), "short": ("h:3", False)}
    matches = {"host": Match(3, 2), "device": Match(3), "short": Match(1)}
    view = view_prompt("p", "chat", prompt, space, workers, matches)
    assert [each.worker_id for each in view.holders] == ["device", "host", "short", "none"]
    device, host, short, none = view.holders
    assert (device.device_tokens, device.host_tokens, device.late) == (192, 0, True)
    assert (host.matched_tokens, host.device_tokens, host.host_tokens) == (192, 64, 128)
    assert short.share == 64 / 200
    assert none.matched_blocks == 0
