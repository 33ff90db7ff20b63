"""The agent beside an engine's outside, with a real indexer, real Redis and a real mirror at the other end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from indexer.keys import pool_fingerprint
from tests.indexer.support import Indexer
from tests.support import eventually
from tests.worker.adapters.agents import INDEX_TOKENS, Line, agent, keys, line, stored
from tests.worker.adapters.support import Naive, scenario, scenario_names


def test_an_engine_without_changes_becomes_a_worker(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole:
            (engine,) = whole.ranks
            await engine.publish_events(stored(1))
            async with agent(whole.index, whole.http) as subject:
                await whole.holds("pod", keys([1] * 32))
                await eventually(lambda: len(engine.asked) > 1)
                await engine.publish_events(stored(2), {"type": "BlockRemoved", "block_hashes": [10]})
                await whole.holds("pod", keys([2] * 32) | keys([1] * 32) - keys([1] * 16))
                facts = whole.mirror.mirror.workers["pod"]
                assert (facts.engine, facts.engine_version, facts.model) == ("vllm", "0.32.0", "tiny")
                assert facts.address == whole.http.url.removeprefix("http://")
                assert facts.capacity == {"device": 4096}
                whole.http.running = 7
                await eventually(lambda: reported(whole.index) == 7)
                ready, details = subject.readiness()
                assert ready
                assert details["index"] == {"pod": "connected"}
                assert details["events"] == "exact"
                (finding,) = details["findings"]
                assert finding.startswith("no tokenizer.json is at hand")
                assert details["troubles"] == []
                assert b'warmroute_agent_events_total{rank="0",what="batches"} 2.0' in generate_latest(subject.registry)

    asyncio.run(run())


def reported(index: Indexer) -> int:
    loads = list(index.loads().values())
    return loads[0].running_requests if loads else 0


def test_ranks_are_workers_of_their_own(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url, ranks=2) as whole, agent(whole.index, whole.http) as subject:
            for rank, engine in enumerate(whole.ranks):
                await engine.publish_events(stored(rank + 1))
            await whole.holds("pod/dp0", keys([1] * 32))
            await whole.holds("pod/dp1", keys([2] * 32))
            text = generate_latest(subject.registry).decode()
            assert 'warmroute_worker_held_keys{rank="1",tier="device"} 2.0' in text
            assert 'warmroute_worker_connected{rank="0"} 1.0' in text

    asyncio.run(run())


def test_an_engine_that_dies_loses_its_keys_and_starts_over(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http) as subject:
            (engine,) = whole.ranks
            await engine.publish_events(stored(1))
            await whole.holds("pod", keys([1] * 32))
            port = whole.http.port
            await whole.http.stop()
            engine.restart()
            await whole.holds("pod", set())
            assert not subject.readiness()[0]
            whole.http.started += 100
            await whole.http.start(port)
            await engine.publish_events(stored(2))
            await whole.holds("pod", keys([2] * 32))
            await eventually(lambda: subject.readiness()[0])

    asyncio.run(run())


def test_a_restart_that_nobody_saw_shows_in_the_time_of_the_start(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http):
            (engine,) = whole.ranks
            await engine.publish_events(stored(1))
            await whole.holds("pod", keys([1] * 32))
            engine.restart()
            whole.http.started += 100
            await whole.holds("pod", set())

    asyncio.run(run())


def test_an_engine_that_comes_back_as_another_is_set_up_anew(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http):
            (engine,) = whole.ranks
            await engine.publish_events(stored(1))
            await whole.holds("pod", keys([1] * 32))
            engine.restart()
            whole.http.block, whole.http.started = 32, 2000.0
            await engine.publish_events(stored(3, block_hashes=[30], block_size=32))
            await whole.holds("pod", keys([3] * 32))
            assert whole.mirror.mirror.workers["pod"].engine_block_tokens == 32

    asyncio.run(run())


def test_adapters_come_and_go(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http):
            (engine,) = whole.ranks
            whole.http.models.append({"id": "lora", "root": "/a", "parent": "tiny"})
            await eventually(lambda: adapters(whole) == ("lora",), within=20)
            await engine.publish_events(stored(1, lora_name="lora", extra_keys=[["lora"], ["lora"]]), stored(2))
            await whole.holds("pod", keys([1] * 32, adapter="lora") | keys([2] * 32))
            # The same name for other weights, of an engine whose events do not tell them apart.
            whole.http.models[1] = {"id": "lora", "root": "/b", "parent": "tiny"}
            await whole.holds("pod", keys([2] * 32))

    asyncio.run(run())


def adapters(whole: Line) -> tuple[str, ...]:
    facts = whole.mirror.mirror.workers.get("pod")
    return tuple(facts.adapters) if facts is not None else ()


def test_blocks_in_main_memory_are_the_host_tier(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http, host_cache_tokens=8192):
            (engine,) = whole.ranks
            await engine.publish_events(stored(1), stored(1, medium="CPU"))
            await engine.publish_events({"type": "BlockRemoved", "block_hashes": [10, 11], "medium": "GPU"})
            await whole.holds("pod", keys([1] * 32), tier="host")
            await whole.holds("pod", set())

    asyncio.run(run())


def test_an_engine_without_events_is_guessed_at_and_told_what_to_change(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with line(redis_url) as whole:
            whole.http.sources = {}
            async with agent(whole.index, whole.http) as subject:
                await eventually(lambda: "pod" in whole.mirror.mirror.workers)
                assert not whole.mirror.mirror.workers["pod"].publishes_events
                ready, details = subject.readiness()
                assert ready
                assert details["events"] == "approximate"
                await eventually(lambda: reported(whole.index) == 1)
                assert b"warmroute_agent_approximate 1.0" in generate_latest(subject.registry)

    asyncio.run(run())
    said = next(record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert said.startswith("vLLM publishes no cache events. Remedy: start vLLM with --kv-events-config")


def test_an_engine_that_cannot_say_yet_is_waited_for(redis_url: str) -> None:
    """It is not taken for one without events, which it would stay until it starts anew."""

    async def run() -> None:
        async with line(redis_url) as whole:
            whole.http.broken.add("/kv_event_sources")
            async with agent(whole.index, whole.http) as subject:
                await eventually(lambda: "answers 500" in subject.readiness()[1]["engine"])
                whole.http.broken.clear()
                await eventually(lambda: subject.readiness()[0])
                assert subject.readiness()[1]["events"] == "exact"

    asyncio.run(run())


def test_an_engine_that_is_never_well_is_never_ready(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http) as subject:
            await eventually(lambda: subject.readiness()[0])
            whole.http.healthy = False
            await eventually(lambda: not subject.readiness()[0])
            asked = len(whole.http.keys)
            while len(whole.http.keys) < asked + 5:
                assert not subject.readiness()[0]
                await asyncio.sleep(0)
            whole.http.healthy = True
            await eventually(lambda: subject.readiness()[0])

    asyncio.run(run())
    assert caplog.text.count("does not answer as it should") == 1


@pytest.mark.parametrize("path", ["/metrics", "/health", "/version"])
def test_paths_that_an_engine_has_not_are_no_failures(path: str, redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole:
            whole.http.missing.add(path)
            async with agent(whole.index, whole.http) as subject:
                await whole.ranks[0].publish_events(stored(1))
                await whole.holds("pod", keys([1] * 32))
                assert subject.readiness()[0]

    asyncio.run(run())


def test_messages_of_a_process_that_has_gone_are_no_blocks_of_the_next(redis_url: str) -> None:
    """They can still be under way when nobody listens any more."""

    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http) as subject:
            (engine,) = whole.ranks
            engine.clock = 1000.0
            await engine.publish_events(stored(1))
            await whole.holds("pod", keys([1] * 32))
            port = whole.http.port
            await whole.http.stop()
            await whole.holds("pod", set())
            await engine.publish_events(stored(2))
            await whole.holds("pod", keys([1] * 32) | keys([2] * 32))
            engine.restart()
            whole.http.started = 2000.0
            await whole.http.start(port)
            await whole.holds("pod", set())
            await eventually(lambda: subject.readiness()[0])

    asyncio.run(run())


def test_blocks_of_another_size_than_said_are_said(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http, engine_block_tokens=32) as subject:
            await eventually(lambda: subject.workers and subject.workers[0].publisher.connected)
            await whole.ranks[0].publish_events(stored(1))
            await eventually(lambda: "give --engine-block-tokens 16" in caplog.text)
            assert b'ignored_blocks_total{rank="0",reason="size"} 2.0' in generate_latest(subject.registry)

    asyncio.run(run())


def test_any_other_engine_is_guessed_at(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole, agent(whole.index, whole.http, engine="openai", cache_tokens=1600):
            await eventually(lambda: "pod" in whole.mirror.mirror.workers)
            facts = whole.mirror.mirror.workers["pod"]
            assert (facts.engine, facts.publishes_events, facts.capacity) == ("openai", False, {"device": 100})

    asyncio.run(run())


def test_tensorrt_llm_is_drained(redis_url: str) -> None:
    def event(number: int, data: dict[str, Any], window: int = 4096) -> dict[str, Any]:
        return {"event_id": number, "window_size": window, "data": data}

    def block(block_hash: int, tokens: list[int]) -> dict[str, Any]:
        return {"block_hash": block_hash, "tokens": [{"token_id": token} for token in tokens], "cache_level": 0}

    async def run() -> None:
        facts = {"engine": "tensorrt-llm", "engine_block_tokens": 32, "host_cache_tokens": 4096}
        async with line(redis_url) as whole, agent(whole.index, whole.http, **facts):
            created = event(0, {"type": "created", "num_blocks_per_cache_level": [10, 10]})
            blocks = [block(1, [1] * 32), block(2, [2] * 32), block(3, [3] * 5)]
            whole.http.drained.append([created, event(1, {"type": "stored", "parent_hash": None, "blocks": blocks})])
            await whole.holds("pod", keys([1] * 32 + [2] * 32))
            level = {"type": "cache_level", "old": 0, "new": 1}
            moved = event(2, {"type": "updated", "block_hash": 2, "cache_level": level})
            whole.http.drained.append([moved, event(3, {"type": "removed", "block_hashes": [3]})])
            await whole.holds("pod", keys([1] * 32))
            await whole.holds("pod", keys([1] * 32 + [2] * 32) - keys([1] * 32), tier="host")
            # A gap: what was known cannot be trusted.
            whole.http.drained.append(
                [event(9, {"type": "stored", "parent_hash": None, "blocks": [block(5, [5] * 32)]})]
            )
            await whole.holds("pod", keys([5] * 32))

    asyncio.run(run())


def test_the_key_and_the_tokenizer(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "key").write_text("secret\n")

    async def run() -> None:
        facts = {"engine_key_file": tmp_path / "key", "model_path": tmp_path}
        async with line(redis_url) as whole, agent(whole.index, whole.http, **facts) as subject:
            await eventually(lambda: whole.http.keys)
            assert whole.http.keys[0] == "Bearer secret"
            await eventually(lambda: subject.workers and subject.workers[0].publisher.connected)
            facts_there = await eventually(lambda: whole.mirror.mirror.workers.get("pod"))
            assert [(file["name"], file["size"]) for file in facts_there.files] == [("tokenizer.json", 2)]

    asyncio.run(run())


# Ranks and items of pictures are the business of tests of their own.
CAPTURES = [("vllm", name) for name in scenario_names("vllm-events") if "parallel" not in name and "multi" not in name]
CAPTURES += [("sglang", name) for name in scenario_names("sglang-events") if not name.endswith("page1")]


@pytest.mark.parametrize(("engine_name", "name"), CAPTURES)
def test_captures_through_sockets_into_the_index(
    engine_name: str, name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.adapters.zmq_source.FIRST_AUDIT_SECONDS", 0.05)
    found = scenario(f"{engine_name}-events", name)
    naive, before = Naive(), -1
    for message in found.batches():
        if message["seq"] <= before:
            naive.copies.clear()
        before = message["seq"]
        for event in message["batch"][1]:
            naive.apply(event)
    index_tokens = max(INDEX_TOKENS, found.block_tokens)
    named = pool_fingerprint(index_block_tokens=index_tokens, base_model="tiny", tokenizer="")

    async def run() -> None:
        async with line(redis_url, block=found.block_tokens) as whole:
            (engine,) = whole.ranks
            ports = [
                int(whole.http.sources["0"][which].rpartition(":")[2]) for which in ("endpoint", "replay_endpoint")
            ]
            kv_events = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": ports[0], "dp_size": 1}
            kv_events |= {"replay_endpoint_port_base": ports[1], "block_size": found.block_tokens}
            whole.http.server_info = {"version": "0.5.23", "kv_events": kv_events}
            async with agent(whole.index, whole.http, engine=engine_name, index_block_tokens=index_tokens):
                await eventually(lambda: len(engine.asked) > 1)
                for frames in found.frames[: len(found.batches())]:
                    number = int.from_bytes(frames[-2], "big")
                    if number < engine.number:
                        engine.restart()
                    await engine.publish(frames[-1], number=number)
                await whole.holds("pod", naive.keys(found.block_tokens, index_tokens, named))

    asyncio.run(run())


def test_sglang_with_pages_of_one_token_is_told_what_to_change(redis_url: str) -> None:
    async def run() -> None:
        async with line(redis_url) as whole:
            kv_events = {"publisher": "zmq", "endpoint_port_base": 5557, "block_size": 1}
            whole.http.server_info = {"version": "0.5.23", "kv_events": kv_events}
            async with agent(whole.index, whole.http, engine="sglang") as subject:
                await eventually(lambda: subject.profile)
                (finding,) = [finding for finding in subject.profile.findings if "pages of 1 token" in finding.what]
                assert finding.blind
                assert "--page-size 16" in finding.remedy

    asyncio.run(run())
