"""vLLM: events over ZMQ, sockets in `GET /kv_event_sources`, load in `vllm:` metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from worker.adapters.engine_client import EngineClient
from worker.adapters.engine_metrics import EngineFacts, MetricNames
from worker.adapters.engines.base import Engine
from worker.adapters.msgpack_events import TIERS
from worker.adapters.numbers import count
from worker.adapters.sources import MOST_RANKS, EventSource, SourcesError, at_host, host_of

FLAG: Final = (
    "start vLLM with --kv-events-config '"
    '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\''
)


def read_config(facts: EngineFacts, labels: Mapping[str, str]) -> None:
    """The configuration of the cache, in the labels of `vllm:cache_config_info`."""
    facts.block_tokens = count(labels.get("block_size")) or None
    # With data parallelism newer versions give the blocks of all ranks beside the tokens of one.
    tokens, blocks = count(labels.get("kv_cache_size_tokens")), count(labels.get("num_gpu_blocks"))
    facts.cache_tokens = tokens or count(blocks * (facts.block_tokens or 0)) or None
    if facts.cache_tokens and facts.block_tokens:
        facts.most_blocks = max(blocks, facts.cache_tokens // facts.block_tokens)
    if (enabled := labels.get("enable_prefix_caching")) is not None:
        facts.prefix_caching = enabled == "True"


def read_sources(answer: object, engine_url: str) -> list[EventSource]:
    """Sources in an answer of `GET /kv_event_sources`: rank -> its configuration. Raises SourcesError."""
    if not isinstance(answer, Mapping) or not answer:
        raise SourcesError("vLLM publishes no cache events", FLAG)
    host = host_of(engine_url)
    sources = []
    for rank, config in answer.items():
        number = count(rank)
        if not isinstance(config, Mapping) or str(number) != str(rank) or number >= MOST_RANKS:
            raise SourcesError(
                f"/kv_event_sources says {str(config)[:200]} of rank {str(rank)[:20]}", "give --events-endpoint"
            )
        if not config.get("enable_kv_cache_events") or config.get("publisher") != "zmq":
            raise SourcesError(f"vLLM publishes no cache events over ZMQ (rank {rank})", FLAG)
        events, replay = str(config.get("endpoint") or ""), config.get("replay_endpoint")
        bound = "*" in events or "::" in events or events.startswith("ipc://")
        sources.append(
            EventSource(
                number,
                at_host(events, host),
                at_host(str(replay), host) if replay else None,
                False if bound else None,
                bool(replay) and count(config.get("buffer_steps")) > 0,
            )
        )
    return sorted(sources, key=lambda source: source.rank)


class Vllm(Engine):
    """vLLM 0.10 and later."""

    default_block_tokens = 16
    publishes_events = True
    tiers = TIERS
    metrics = MetricNames(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        computed=("vllm:request_prefill_kv_computed_tokens_sum",),
        computed_requests=("vllm:request_prefill_kv_computed_tokens_count",),
        prompt=("vllm:prompt_tokens_total",),
        cached=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        finished=("vllm:request_success_total",),
        labelled={"vllm:cache_config_info": read_config},
        rank_labels=("engine",),
    )

    async def sources(self, client: EngineClient) -> Sequence[EventSource]:
        answer = await client.json_or_none("/kv_event_sources")
        if answer is None:
            raise SourcesError(
                "this vLLM does not say where it publishes its cache events",
                "give --events-endpoint and --replay-endpoint as in vLLM's --kv-events-config, such as "
                "tcp://127.0.0.1:5557 and tcp://127.0.0.1:5558; for an engine that is not vLLM give --engine",
            )
        return read_sources(answer, client.url)


ENGINE: Final = Vllm()
