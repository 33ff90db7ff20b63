"""Whatever a server answers, an adapter raises its documented errors or reads it within the bounds of an index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from warmroute.config.agent import AgentConfig
from warmroute.config.engines import AGENT_ENGINES
from worker.adapters.engine_client import EngineClient, EngineError, engine_client
from worker.adapters.engine_metrics import MetricsReader, Scrape
from worker.adapters.engines.base import About, Engine
from worker.adapters.engines.registry import engine_named
from worker.adapters.engines.vllm import Vllm
from worker.adapters.numbers import MOST
from worker.adapters.profile import MOST_NAME_BYTES, probe
from worker.adapters.sources import MOST_RANKS, SourcesError

HUGE = b"9" * 400
MODELS = b'"data": [{"id": "m"}]'
"""With it a probe goes on to all other questions."""

BODIES = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "object": b"{}",
    "text": b'"x"',
    "true": b"true",
    "number": b"-1.5",
    "huge number": HUGE,
    "nan": b"NaN",
    "nan in a field": b'{"version": NaN}',
    "cut": b'{"data": [{"id": "m"',
    "deep": b"[" * 5000 + b"]" * 5000,
    "deep in a field": b'{"kv_events": ' + b'{"a":' * 200 + b"1" + b"}" * 200 + b", %b}" % MODELS,
    "html": b"<!doctype html><title>502</title><p>Bad Gateway",
    "no utf-8": b'{"version": "\xff\xfe"}',
    "bytes": bytes(range(256)) * 8,
    "surrogate": b'{"version": "\\ud800", %b}' % MODELS,
    "wrong models": b'{"data": {"id": "m"}}',
    "wrong entries": b'{"data": [null, 5, "m", [], {"id": null}, {"id": ["m"]}, {"id": "m", "root": 7, "parent": {}}]}',
    "long name": b'{"data": [{"id": "%b"}]}' % (b"m" * 5000),
    "wrong fields": b'{%b, "version": {"x": []}, "page_size": "64k", "max_total_num_tokens": [1]}' % MODELS,
    "huge fields": b'{%b, "version": %b, "page_size": 1e300, "max_total_num_tokens": 1e400}' % (MODELS, HUGE),
    "long version": b'{%b, "version": "%b"}' % (MODELS, "é".encode() * 5000),
    "negative fields": b'{%b, "page_size": -16, "max_total_num_tokens": -1}' % MODELS,
    "wrong events": b'{%b, "kv_events": [{"publisher": "zmq"}]}' % MODELS,
    "ports": b'{%b, "kv_events": {"publisher": "zmq", "endpoint_port_base": 70000, "dp_size": -3}}' % MODELS,
    "last port": b'{%b, "kv_events": {"publisher": "zmq", "endpoint_port_base": 65535, "dp_size": 9e9}}' % MODELS,
    "wrong hosts": b'{%b, "kv_events": {"publisher": "zmq", "endpoint_port_base": "5557", "endpoint_host": [1], '
    b'"replay_endpoint_port_base": {}, "block_size": "x"}}' % MODELS,
    "wrong rank": b'{"-1": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}}',
    "wrong endpoint": b'{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": {"a": 1}}}',
    "wrong replay": b'{"0": {"enable_kv_cache_events": 1, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    b'"replay_endpoint": [1], "buffer_steps": "many"}}',
    "wrong drained": b'[null, {}, {"event_id": "x"}, {"event_id": 1, "data": []}, {"event_id": 2, "data": {"type": '
    b'"stored", "blocks": [{"tokens": {}}]}}, {"event_id": 3, "attention_dp_rank": 1e9, "data": 5}]',
    "wrong drained hashes": b'[{"event_id": 1e400}, {"event_id": 0, "data": {"type": "removed", "block_hashes": 5}}, '
    b'{"event_id": 1, "data": {"type": "updated", "block_hash": [], "cache_level": {"old": {}}}}]',
    "wrong statistics": b'[{"numActiveRequests": "x", "numQueuedRequests": -5, "kvCacheStats": [1]}]',
    "overfull statistics": b'[{"numActiveRequests": 1e300, "numQueuedRequests": 2, "kvCacheStats": '
    b'{"maxNumBlocks": 1, "usedNumBlocks": 1e300}}]',
    "bad values": b"vllm:num_requests_running x\nsglang:token_usage 1e999\nvllm:kv_cache_usage_perc -NaN\n"
    b"trtllm_kv_cache_utilization 0x1\nprocess_start_time_seconds +Inf\n",
    "bad labels": b'vllm:cache_config_info{block_size="-1",num_gpu_blocks="1e9"} 1\nsglang:page_size{dp_rank="\n'
    b'vllm:num_requests_waiting{engine="99999999999999999999"} 4\nvllm:cache_config_info{block_size=16} 1\n',
    "large values": b"vllm:num_requests_running 1e300\nsglang:token_usage 17\nsglang:page_size 1e18\n"
    b"trtllm_kv_cache_utilization -4\nvllm:num_requests_waiting -1e300\nsglang:max_total_num_tokens 1e300\n",
}
STATUSES = (b"200 OK", b"404 Not Found", b"500 Internal Server Error")


@asynccontextmanager
async def answering(status: bytes, body: bytes) -> AsyncIterator[str]:
    """The URL of a server that knows this one answer to everything."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield "http://127.0.0.1:{}".format(*server.sockets[0].getsockname()[1:2])


def check_about(about: About) -> None:
    assert len(about.version) <= 64
    assert 0 <= about.block_tokens <= MOST
    assert 0 <= about.cache_tokens <= MOST


def check_scrape(scrape: Scrape) -> None:
    for load in scrape.loads.values():
        assert 0 <= load.running_requests <= MOST
        assert 0 <= load.waiting_requests <= MOST
        assert 0 <= load.waiting_tokens <= MOST
        assert 0 <= load.kv_cache_usage <= 1
    for facts in scrape.facts.values():
        assert all(value is None or 0 < value <= MOST for value in (facts.block_tokens, facts.cache_tokens))


async def ask_everything(engine: Engine, name: str, client: EngineClient) -> int:
    """Ask the server what an agent asks; returns how many questions were answered."""
    answered = 0
    with suppress(EngineError):
        check_about(await engine.about(client))
        answered += 1
    with suppress(EngineError, SourcesError):
        sources = await engine.sources(client)
        assert len(sources) <= MOST_RANKS
        assert [source.rank for source in sources] == sorted({source.rank for source in sources})
        answered += 1
    with suppress(EngineError):
        found = await probe(client, AgentConfig(engine=name, engine_url=client.url))
        assert len(found.model.encode()) <= MOST_NAME_BYTES
        assert all(rank.block_tokens >= 1 and 0 <= rank.cache_tokens <= MOST for rank in found.ranks)
        assert 1 <= len(found.ranks) <= MOST_RANKS
        answered += 1
    with suppress(EngineError):
        check_scrape(engine.read_metrics(await client.text("/metrics"), MetricsReader(engine.metrics, quiet=True)))
        answered += 1
    drain = engine.drain(engine.default_block_tokens)
    if drain is not None:
        with suppress(EngineError):
            decoded = drain.decoder.decode(await client.json(drain.path, method="POST"))
            assert all(rank >= 0 for rank in decoded)
            answered += 1
    return answered


async def ask(engine: Engine, name: str, status: bytes, body: bytes) -> int:
    async with answering(status, body) as url, engine_client(url, timeout_seconds=5, key=None) as client:
        return await ask_everything(engine, name, client)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("name", AGENT_ENGINES)
def test_nonsense_is_an_error_that_is_known_or_is_read_within_bounds(name: str, body: bytes) -> None:
    for status in STATUSES:
        answered = asyncio.run(ask(engine_named(name), name, status, body))
        assert answered or status != STATUSES[0]  # what is no JSON still is a text of metrics


def test_some_nonsense_is_close_enough_to_be_read_to_its_end() -> None:
    for name in AGENT_ENGINES:
        assert asyncio.run(ask(engine_named(name), name, STATUSES[0], BODIES["wrong fields"])) >= 3


def test_an_adapter_that_trusts_its_engine_is_found() -> None:
    class Trusting(Vllm):
        async def about(self, client: EngineClient) -> About:
            answer: Any = await client.json_or_none("/version")
            return About(answer["version"])

    with pytest.raises(TypeError):
        asyncio.run(ask(Trusting(), "vllm", STATUSES[0], BODIES["null"]))
    with pytest.raises(AssertionError):
        asyncio.run(ask(Trusting(), "vllm", STATUSES[0], BODIES["long version"]))
