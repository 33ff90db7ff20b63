"""Where an engine publishes its events: `GET /kv_event_sources` of vLLM, `GET /server_info` of SGLang, or settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from worker.adapters.numbers import count

MOST_RANKS: Final = 256
MOST_PORT: Final = 65_535
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
    """The engine's answer, or a setting, names no events that can be read: why, and what to change."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what = what
        self.remedy = remedy


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
    if not isinstance(answer, Mapping) or not answer:
        raise SourcesError("vLLM publishes no cache events", VLLM_FLAG)
    host = _host(engine_url)
    sources = []
    for rank, config in answer.items():
        number = count(rank)
        if not isinstance(config, Mapping) or str(number) != str(rank) or number >= MOST_RANKS:
            raise SourcesError(
                f"/kv_event_sources says {str(config)[:200]} of rank {str(rank)[:20]}", "give --events-endpoint"
            )
        if not config.get("enable_kv_cache_events") or config.get("publisher") != "zmq":
            raise SourcesError(f"vLLM publishes no cache events over ZMQ (rank {rank})", VLLM_FLAG)
        events, replay = str(config.get("endpoint") or ""), config.get("replay_endpoint")
        bound = "*" in events or "::" in events or events.startswith("ipc://")
        sources.append(
            EventSource(
                number,
                _at_host(events, host),
                _at_host(str(replay), host) if replay else None,
                False if bound else None,
                bool(replay) and count(config.get("buffer_steps")) > 0,
            )
        )
    return sorted(sources, key=lambda source: source.rank)


def from_sglang(answer: object, engine_url: str) -> list[EventSource]:
    """Sources in an answer of `GET /server_info`. Raises SourcesError."""
    config = answer.get("kv_events") if isinstance(answer, Mapping) else None
    if not isinstance(config, Mapping) or config.get("publisher") != "zmq":
        raise SourcesError("SGLang publishes no cache events", SGLANG_FLAG)
    port, replay = count(config.get("endpoint_port_base")), count(config.get("replay_endpoint_port_base"))
    if not 1 <= port <= MOST_PORT or replay > MOST_PORT:
        raise SourcesError("SGLang's /server_info names no port of its events", "give --events-endpoint")
    page = count(config.get("block_size"))
    if page == 1:
        raise SourcesError("SGLang has pages of 1 token, which make an event for each token", SGLANG_FLAG)
    host = str(config.get("endpoint_host") or "*")
    host = _host(engine_url) if host in _WILDCARDS else host
    ranks = min(MOST_RANKS, max(1, count(config.get("dp_size"))))
    events, replays = f"tcp://{host}:{port}", f"tcp://{host}:{replay}" if replay else None
    return [replace(source, block_tokens=page) for source in from_settings(events, replays, ranks)]


def _host(engine_url: str) -> str:
    host = urlsplit(engine_url).hostname or "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _at_host(endpoint: str, host: str) -> str:
    """The endpoint as it is reached from here: a wildcard is the engine's own host. Raises SourcesError."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc" and rest:
        return endpoint
    name, _, port = rest.rpartition(":")
    if scheme != "tcp" or not 1 <= count(port) <= MOST_PORT:
        raise SourcesError(
            f"the engine publishes at {endpoint[:200]!r}, which is no tcp:// or ipc:// endpoint",
            "give --events-endpoint",
        )
    return f"tcp://{host if name in _WILDCARDS else name}:{port}"


def _shifted(endpoint: str, rank: int) -> str:
    if not rank:
        return endpoint
    head, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or not 1 <= count(port) <= MOST_PORT - rank:
        raise SourcesError(
            f"{endpoint} has no port for rank {rank}",
            "ranks count up the port of a tcp:// endpoint: give one that leaves room, or --ranks 1",
        )
    return f"{head}:{int(port) + rank}"
