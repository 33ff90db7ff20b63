"""What became of requests: kept in memory, told in a header, and written for `warmroute replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from gateway.http import log_writer
from gateway.prompts.keyer import PromptKeyer
from gateway.replay.read import read_trace
from gateway.requests import decisions
from gateway.requests.decisions import Decisions
from gateway.requests.metrics import RequestMetrics
from gateway.routing.decision_log import LoggedDecision
from tests.gateway.http.support import Link, client, config, plain, replying, run, worker
from tests.gateway.requests.support import as_json, sse
from tests.gateway.support import Gate, gate
from tests.support import eventually
from worker.model_cache import ensure_model

WORDS = "secret words that fill index blocks " * 30
CHAT = {"model": "m", "messages": [{"role": "user", "content": WORDS}]}
USAGE = b'"usage":{"prompt_tokens":200,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":64}}'
STREAM = sse(b'data: {"choices":[]}\n\n', b"data: {%b}\n\n" % USAGE, b"data: [DONE]\n\n")
ASK = "x-warmroute-explain: 1"


@pytest.fixture(scope="module")
def keyer() -> PromptKeyer:
    return PromptKeyer.from_folder(ensure_model(), budget_seconds=10)


def latest(gateway: Gate, limit: int = 10, pool: str | None = None) -> list[dict[str, Any]]:
    return gateway.app.decisions.latest(limit, pool)


async def chat(gateway: Gate, *headers: str, status: int = 200, **fields: Any) -> dict[str, Any] | None:
    """The decision that the reply tells; None where it tells none."""
    answer = await gateway.ask("POST", "/v1/chat/completions", {**CHAT, **fields}, headers)
    assert answer.status == status
    told = answer.header(b"x-warmroute-decision")
    return None if told is None else json.loads(told)


def test_what_was_expected_stands_beside_what_came(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        async with worker(replying(STREAM)) as engine, gate(engine.port, keyer=keyer) as gateway:
            await chat(gateway, stream=True)
            told = await chat(gateway, ASK, "x-request-id: second", stream=True)
            second, first = latest(gateway)
            assert second["time"] >= first["time"] > 1e9
            assert second["first_byte_seconds"] >= 0
            assert second["matched_tokens"] == told["matched_tokens"] > first["matched_tokens"] == 0
            expected = {
                "request_id": "second",
                "pool": "p",
                "worker": "w0",
                "status": 200,
                "outcome": "completed",
                "retries": 0,
                "load_only": "",
                "cached_tokens": 64,
                "reply_tokens": 7,
                "streamed": True,
                "estimated_seconds": None,
                "candidates": 1,
                "unit": "tokens",
                "in_flight": 0,
            }
            assert {name: second[name] for name in expected} == expected
            assert second["uncached_tokens"] == second["prompt_tokens"] - second["matched_tokens"]
            assert len(latest(gateway, limit=1)) == 1
            assert latest(gateway, pool="none") == []

    run(scenario())


def test_a_retry_and_the_lack_of_a_worker_are_outcomes(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        async with (
            worker(replying(plain(b"no", b"503 Service Unavailable"))) as broken,
            worker(replying(as_json(b"{%b}" % USAGE))) as engine,
        ):
            async with gate(broken.port, engine.port, keyer=keyer) as gateway:
                for number in range(20):
                    await chat(gateway, messages=[{"role": "user", "content": f"{number} {WORDS}"}])
                    if latest(gateway)[0]["retries"]:
                        break
                last = latest(gateway)[0]
                assert (last["retries"], last["worker"], last["outcome"]) == (1, "w1", "completed")
                assert not last["streamed"]
            async with gate() as gateway:
                await chat(gateway, status=503)
                (none,) = latest(gateway)
                assert (none["worker"], none["outcome"], none["status"]) == ("", "no_worker", 503)
                assert (none["load_only"], none["candidates"]) == ("no_tokenizer", 0)

    run(scenario())


def test_the_header_is_for_who_asks_and_is_allowed_to(keyer: PromptKeyer) -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine:
            async with gate(engine.port, keyer=keyer) as gateway:
                assert await chat(gateway) is None
                assert await chat(gateway, "x-warmroute-explain: 0") is None
                assert (await chat(gateway, ASK))["worker"] == "w0"
            async with gate(engine.port, keyer=keyer, settings={"decision_header": False}) as gateway:
                assert await chat(gateway, ASK) is None

    run(scenario())


def test_the_ring_is_bounded_and_may_be_off() -> None:
    async def scenario() -> None:
        async with worker(replying(as_json(b"{}"))) as engine:
            for kept in (0, 3):
                async with gate(engine.port, settings={"decisions_kept": kept}) as gateway:
                    for _ in range(5):
                        await chat(gateway)
                    assert len(latest(gateway)) == kept

    run(scenario())


def test_the_log_is_replayable_and_holds_nothing_that_could_be_read(tmp_path: Path, keyer: PromptKeyer) -> None:
    file = tmp_path / "decisions.jsonl"

    async def scenario() -> None:
        async with (
            worker(replying(STREAM)) as engine,
            gate(engine.port, keyer=keyer, settings={"decision_log": file}) as gateway,
        ):
            for _ in range(3):
                await chat(gateway, "x-session-id: alice@example.com", stream=True, cache_salt="pepper")
            await eventually(file.exists)
            await chat(gateway, stream=True)

    run(scenario())
    text = file.read_bytes()
    for hidden in (b"secret", b"alice", b"pepper"):
        assert hidden not in text
    lines = [LoggedDecision.from_fields(orjson.loads(line)) for line in text.splitlines()]
    assert [(line.pool, line.worker, line.outcome, line.reply_tokens) for line in lines] == [
        ("p", "w0", "completed", 7)
    ] * 4
    assert len(lines[0].keys) == lines[0].prompt_tokens // 64 >= 2
    assert [line.keys == lines[0].keys for line in lines] == [True, True, True, False]
    assert lines[0].session == lines[1].session != lines[3].session == ""
    assert (lines[0].matched_tokens, lines[1].matched_tokens > 0, lines[1].cached_tokens) == (0, True, 64)
    trace = read_trace(file, context_limit=10_000)
    assert (len(trace), trace.block_tokens) == (4, 64)
    assert [request.prompt_tokens for request in trace.requests] == [lines[0].prompt_tokens] * 4


def test_lines_beyond_the_bound_are_counted_and_a_line_weighs_its_keys(
    tmp_path: Path, keyer: PromptKeyer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "PENDING_KEYS", 6)
    monkeypatch.setattr(log_writer, "FLUSH_SECONDS", 60.0)
    file = tmp_path / "decisions.jsonl"

    async def scenario() -> None:
        async with (
            worker(replying(STREAM)) as engine,
            gate(engine.port, keyer=keyer, settings={"decision_log": file}) as gateway,
        ):
            for _ in range(4):
                await chat(gateway)
            assert gateway.count("decision_log_dropped_total") == 2

    run(scenario())
    lines = file.read_bytes().splitlines()
    assert len(lines) == 2
    assert 3 <= len(orjson.loads(lines[0])["keys"]) // 16 < 6


def test_a_client_that_leaves_is_an_outcome() -> None:
    async def silent(link: Link) -> None:
        await link.request()
        await link.peer_gone()

    async def scenario() -> None:
        async with worker(silent) as engine, gate(engine.port) as gateway:
            data = orjson.dumps(CHAT)
            async with client(gateway.server.port) as connected:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
                connected.send(head.encode() + data)
                await eventually(lambda: engine.requests)
                connected.leave()
            (left,) = await eventually(lambda: latest(gateway))
            assert (left["status"], left["outcome"], left["first_byte_seconds"]) == (499, "client_gone", None)

    run(scenario())


def test_nothing_runs_without_a_log() -> None:
    assert Decisions(config(), RequestMetrics(CollectorRegistry())).tasks() == []
