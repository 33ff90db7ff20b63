"""Where an engine publishes its events: `GET /kv_event_sources` of vLLM, `GET /server_info` of SGLang, or settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

MOST_RANKS: Final = 256
_WILDCARDS: Final = frozenset({"*", "0.0.0.0", "[::]", "::", ""})  # noqa: S104 - what engines say, not what we bind


@dataclass(frozen=True, slots=True)
class EventSource:
    """One data-parallel rank's sockets. `replay` is None where the engine keeps nothing.

    `bind` is True when the engine connects to us. None when its words leave that open: an address without a wildcard is
    one that it connects to, or one that it has bound and says so; whether we can bind it tells.
    """

    rank: int
    events: str
    replay: str | None = None
    bind: bool | None = False
    replay_keeps: bool = False
    block_tokens: int = 0
    """Tokens in a block, where the engine says it here."""


class SourcesError(Exception):
    """The engine's answer names no events that can be read; the message says why and what to change."""


VLLM_FLAG: Final = (
    "start vLLM with --kv-events-config '"
    '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\''
)
SGLANG_FLAG: Final = (
    "start SGLang with --page-size 16 (or more) --kv-events-config '"
    '{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\''
)


def from_settings(events: str, replay: str | None, ranks: int, *, bind: bool = False) -> list[EventSource]:
    """Sources as given: rank N has the ports of rank 0 plus N, as engines count them."""
    return [
        EventSource(rank, _shifted(events, rank), _shifted(replay, rank) if replay else None, bind, bool(replay))
        for rank in range(ranks)
    ]


def from_vllm(answer: object, engine_url: str) -> list[EventSource]:
    """Sources in an answer of `GET /kv_event_sources`: rank -> its configuration. Raises SourcesError."""
    if not isinstance(answer, Mapping) or not answer or len(answer) > MOST_RANKS:
        raise SourcesError(f"vLLM publishes no cache events: {VLLM_FLAG}")
    host = _host(engine_url)
    sources = []
    for rank, config in answer.items():
        if not isinstance(config, Mapping) or not str(rank).isdigit():
            raise SourcesError(f"/kv_event_sources says {config!r} of rank {rank!r}; give --events-endpoint instead")
        if not config.get("enable_kv_cache_events") or config.get("publisher") != "zmq":
            raise SourcesError(f"vLLM publishes no cache events over ZMQ (rank {rank}): {VLLM_FLAG}")
        events, replay = str(config.get("endpoint") or ""), config.get("replay_endpoint")
        bound = "*" in events or "::" in events or events.startswith("ipc://")
        sources.append(
            EventSource(
                int(rank),
                _at_host(events, host),
                _at_host(str(replay), host) if replay else None,
                False if bound else None,
                bool(replay) and int(config.get("buffer_steps") or 0) > 0,
            )
        )
    return sorted(sources, key=lambda source: source.rank)


def from_sglang(answer: object, engine_url: str) -> list[EventSource]:
    """Sources in an answer of `GET /server_info`. Raises SourcesError."""
    config = answer.get("kv_events") if isinstance(answer, Mapping) else None
    if not isinstance(config, Mapping) or config.get("publisher") != "zmq":
        raise SourcesError(f"SGLang publishes no cache events: {SGLANG_FLAG}")
    port, replay = config.get("endpoint_port_base"), config.get("replay_endpoint_port_base")
    if not isinstance(port, int):
        raise SourcesError("SGLang's /server_info names no port of its events: give --events-endpoint")
    page = int(config.get("block_size") or 0)
    if page == 1:
        raise SourcesError(f"SGLang has pages of 1 token, which make an event for each token: {SGLANG_FLAG}")
    host = str(config.get("endpoint_host") or "*")
    host = _host(engine_url) if host in _WILDCARDS else host
    ranks = min(MOST_RANKS, max(1, int(config.get("dp_size") or 1)))
    return [
        EventSource(
            rank,
            f"tcp://{host}:{port + rank}",
            f"tcp://{host}:{int(replay) + rank}" if replay else None,
            False,
            bool(replay),
            page,
        )
        for rank in range(ranks)
    ]


def _host(engine_url: str) -> str:
    host = urlsplit(engine_url).hostname or "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _at_host(endpoint: str, host: str) -> str:
    """The endpoint as it is reached from here: a wildcard is the engine's own host."""
    scheme, separator, rest = endpoint.partition("://")
    name, colon, port = rest.rpartition(":")
    if scheme != "tcp" or not separator or not colon:
        return endpoint
    return f"tcp://{host if name in _WILDCARDS else name}:{port}"


def _shifted(endpoint: str, rank: int) -> str:
    if not rank:
        return endpoint
    head, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or not port.isdigit():
        raise SourcesError(f"{endpoint}: ranks count up the port of a tcp:// endpoint; this has none")
    return f"{head}:{int(port) + rank}"
