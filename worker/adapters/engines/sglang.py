"""SGLang: events over ZMQ, sockets, page and cache in `GET /server_info`, load in `sglang:` metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from worker.adapters.engine_client import EngineClient
from worker.adapters.engine_metrics import MetricNames
from worker.adapters.engines.base import About, Engine, Finding, version_of
from worker.adapters.msgpack_events import TIERS
from worker.adapters.numbers import count
from worker.adapters.sources import (
    MOST_PORT,
    MOST_RANKS,
    WILDCARDS,
    EventSource,
    SourcesError,
    from_settings,
    host_of,
)

FLAG: Final = (
    "start SGLang with --page-size 16 (or more) --kv-events-config '"
    '{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\''
)
_INFO: Final = "/server_info"


def read_sources(answer: object, engine_url: str) -> list[EventSource]:
    """Sources in an answer of `GET /server_info`. Raises SourcesError."""
    config = answer.get("kv_events") if isinstance(answer, Mapping) else None
    if not isinstance(config, Mapping) or config.get("publisher") != "zmq":
        raise SourcesError("SGLang publishes no cache events", FLAG)
    port, replay = count(config.get("endpoint_port_base")), count(config.get("replay_endpoint_port_base"))
    if not 1 <= port <= MOST_PORT or replay > MOST_PORT:
        raise SourcesError("SGLang's /server_info names no port of its events", "give --events-endpoint")
    page = count(config.get("block_size"))
    if page == 1:
        raise SourcesError("SGLang has pages of 1 token, which make an event for each token", FLAG)
    host = str(config.get("endpoint_host") or "*")
    host = host_of(engine_url) if host in WILDCARDS else host
    ranks = min(MOST_RANKS, max(1, count(config.get("dp_size"))))
    events, replays = f"tcp://{host}:{port}", f"tcp://{host}:{replay}" if replay else None
    return [replace(source, block_tokens=page) for source in from_settings(events, replays, ranks)]


class Sglang(Engine):
    """SGLang 0.5 and later."""

    default_block_tokens = 64
    publishes_events = True
    tiers = TIERS
    metrics = MetricNames(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        usage=("sglang:full_token_usage", "sglang:token_usage"),
        prompt=("sglang:prompt_tokens_total",),
        cached=("sglang:cached_tokens_total",),
        finished=("sglang:num_requests_total",),
        capacity=("sglang:max_total_num_tokens",),
        block=("sglang:page_size",),
        rank_labels=("dp_rank",),
    )

    async def about(self, client: EngineClient) -> About:
        answer = await client.json_or_none(_INFO)
        info = answer if isinstance(answer, Mapping) else {}
        return About(version_of(info), count(info.get("page_size")), count(info.get("max_total_num_tokens")))

    async def sources(self, client: EngineClient) -> Sequence[EventSource]:
        return read_sources(await client.json_or_none(_INFO), client.url)

    def findings(self, block_tokens: int) -> Sequence[Finding]:
        if block_tokens != 1:
            return ()
        return (Finding("SGLang has pages of 1 token", "start it with --page-size 16 or more", blind=True),)


ENGINE: Final = Sglang()
