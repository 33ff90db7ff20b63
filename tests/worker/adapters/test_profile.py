"""What an engine says of itself, and what of its flags is found wanting."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import folder_of
from tests.worker.adapters.stand_in import engine_http
from tests.worker.adapters.support import fixtures
from warmroute.config.agent import AgentConfig
from worker.adapters.engine_client import EngineError, engine_client
from worker.adapters.profile import Profile, Rank, model_files, probe, read_models

SOURCE = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557", "buffer_steps": 9}


def profile(config: dict[str, Any] | None = None, **facts: Any) -> Profile:
    async def ask() -> Profile:
        async with (
            engine_http(**{"sources": {"0": {**SOURCE, "replay_endpoint": "tcp://*:5558"}}, **facts}) as http,
            engine_client(http.url, timeout_seconds=5, key=None) as client,
        ):
            return await probe(client, AgentConfig(engine_url=http.url, **(config or {})))

    return asyncio.run(ask())


def test_a_well_set_engine_has_no_findings() -> None:
    found = profile()
    assert (found.model, found.version, found.findings, found.blind) == ("tiny", "0.32.0", (), False)
    assert found.ranks == (Rank(0, 16, 65_536, 4096),)


@pytest.mark.parametrize(
    ("config", "facts", "said", "blind"),
    [
        ({}, {"sources": {"0": SOURCE}}, '"replay_endpoint"', False),
        ({}, {"sources": None}, "give --events-endpoint", True),
        ({"index_block_tokens": 48}, {"block": 32}, "--index-block-tokens", True),
        ({"engine": "sglang"}, {}, "--page-size 16", True),
        ({"ranks": 2}, {}, "give --ranks 1", False),
        ({"index_block_tokens": 1024}, {"block": 1 << 20}, "at most 4096 tokens", True),
        ({}, {"sources": {"0": {**SOURCE, "endpoint": "tcp://*"}}}, "Remedy: give --events-endpoint", True),
    ],
)
def test_findings_name_the_remedy(config: dict, facts: dict, said: str, blind: bool) -> None:
    (finding,) = profile(config, **facts).findings
    assert said in str(finding)
    assert finding.blind == blind


def test_ranks_are_those_that_publish() -> None:
    sources = {rank: {**SOURCE, "replay_endpoint": "tcp://*:5558"} for rank in ("2", "3")}
    found = profile(sources=sources, ranks=4)
    assert [rank.number for rank in found.ranks] == [2, 3]


def test_settings_win_over_what_the_engine_says() -> None:
    config = {"model": "public", "cache_tokens": 1600, "engine_block_tokens": 32, "events_endpoint": "tcp://h:1"}
    found = profile({**config, "replay_endpoint": "tcp://h:9", "ranks": 2})
    assert (found.model, found.ranks) == ("public", (Rank(0, 32, 1600, 50), Rank(1, 32, 1600, 50)))
    assert [source.events for source in found.sources] == ["tcp://h:1", "tcp://h:2"]


def test_an_engine_that_is_not_there_is_an_error() -> None:
    async def ask() -> None:
        async with engine_http() as http:
            url = http.url
        async with engine_client(url, timeout_seconds=5, key=None) as client:
            with pytest.raises(EngineError, match="does not answer") as caught:
                await probe(client, AgentConfig(engine_url=url))
            assert caught.value.refused

    asyncio.run(ask())


def test_captured_models_with_adapters() -> None:
    answer = json.loads((fixtures() / "vllm-models-with-lora.json").read_text(encoding="utf-8"))
    found = read_models(answer)
    assert found == ("tiny-qwen", "/models/model", {"lora-a": "/models/lora-a", "lora-x": "/models/lora-b"})


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"data": None}, {"data": 5}, {"data": "x"}, {"data": [5, "x", {"id": 5}, {"id": "x" * 257}]}],
)
def test_models_of_a_wrong_shape_are_none(answer: object) -> None:
    assert read_models(answer) == ("", "", {})


def test_the_model_s_files_are_offered_where_they_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    found = Profile("", "m", str(tmp_path), (), ())
    offered = model_files(AgentConfig(), found)
    assert offered.tokenizer is not None
    assert (offered.tokenizer.size, [file.name for file in offered.files]) == (2, ["tokenizer.json"])
    assert not model_files(AgentConfig(model_path=tmp_path / "not"), found).files
    assert not model_files(AgentConfig(), Profile("", "m", "org/name", (), ())).files


def test_files_of_a_model_that_the_engine_fetched_are_found_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    model = folder_of(tmp_path / "models--org--name", {"refs/main": commit.encode(), "blobs/x": b"{}"})
    snapshot = folder_of(model / "snapshots" / commit, {"config.json": b"{}"})
    (snapshot / "tokenizer.json").symlink_to(Path("../../blobs/x"))
    offered = model_files(AgentConfig(), Profile("", "m", "org/name", (), ()))
    assert [file.name for file in offered.files] == ["tokenizer.json", "config.json"]
    for name in ("org/other", "no name of the hub", ""):
        assert not model_files(AgentConfig(), Profile("", "m", name, (), ())).files
