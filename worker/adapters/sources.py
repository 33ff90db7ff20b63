"""Where an engine publishes its events: as its own answers say (`Engine.sources`), or settings. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from worker.adapters.numbers import count

MOST_RANKS: Final = 256
MOST_PORT: Final = 65_535
WILDCARDS: Final = frozenset({"*", "0.0.0.0", "[::]", "::", ""})  # noqa: S104 - what engines say, not what we bind
"""Hosts by which engines say that they listen everywhere."""


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


def from_settings(events: str, replay: str | None, ranks: int, *, bind: bool = False) -> list[EventSource]:
    """Sources as given: rank N has the ports of rank 0 plus N, as engines count them."""
    return [
        EventSource(rank, _shifted(events, rank), _shifted(replay, rank) if replay else None, bind, bool(replay))
        for rank in range(ranks)
    ]


def host_of(engine_url: str) -> str:
    """The host of a URL, as an endpoint has it: IPv6 in brackets."""
    host = urlsplit(engine_url).hostname or "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def at_host(endpoint: str, host: str) -> str:
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
    return f"tcp://{host if name in WILDCARDS else name}:{port}"


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
