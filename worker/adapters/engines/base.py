"""What the agent must know of an engine: one subclass a file, whose only instance is that module's `ENGINE`.

`warmroute.config.engines` lists them. Nothing outside this folder asks for an engine's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.adapters.engine_client import EngineClient
from worker.adapters.engine_metrics import MetricNames, MetricsReader, Scrape
from worker.adapters.events import Drained, EngineBatch
from worker.adapters.msgpack_events import decode_batch
from worker.adapters.sources import EventSource
from worker.events import Tier


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs exactness or sight. `blind`: nothing can be read of what the cache holds."""

    what: str
    remedy: str
    blind: bool = False

    def __str__(self) -> str:
        return f"{self.what}. Remedy: {self.remedy}"


@dataclass(frozen=True, slots=True)
class About:
    """What an engine says of itself outside its metrics. `block_tokens`: in one block, `cache_tokens`: that one rank's
    cache holds on the device; 0 where it does not say."""

    version: str = ""
    block_tokens: int = 0
    cache_tokens: int = 0


class DrainDecoder(Protocol):
    """Reads the answers of one engine's drain, in order. Bounded by the engine's ranks."""

    undecodable: int
    """Events that were left out so far."""

    def decode(self, answer: object) -> dict[int, Drained]:
        """Events of one answer, by rank. Never raises: what cannot be read is left out and counted."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Events that an engine keeps until somebody takes them: `POST path` answers with them and empties its buffer."""

    path: str
    decoder: DrainDecoder
    remedy: str
    """What to change where the engine refuses."""


class Engine(Protocol):
    """One engine. It keeps no state: an agent of several ranks uses one instance for all.

    What has a body here is what most engines do. A method that asks the engine raises EngineError while that cannot
    say, so that it is asked again later.
    """

    default_block_tokens: int
    """Tokens in a KV block where neither settings nor the engine say: 1 to 4096."""
    publishes_events: bool
    """Whether it can tell what its cache holds; where not, gateways guess, whatever its settings are."""
    tiers: Mapping[str, Tier]
    """Its events' words for where a block lies; blocks elsewhere are left out and counted."""
    metrics: MetricNames
    """Names of its metrics for load and facts."""

    async def about(self, client: EngineClient) -> About:
        """Version, block and cache, as far as the engine says them over HTTP. The version has at most 64 characters."""
        return About(version_of(await client.json_or_none("/version")))

    async def sources(self, client: EngineClient) -> Sequence[EventSource]:
        """Sockets of its events, one a rank, by rank; at most `MOST_RANKS`. Empty where it has none, or is drained.

        Raises SourcesError, with the remedy, where there are none and the engine could have some.
        """
        return ()

    def decode(self, payload: bytes) -> EngineBatch:
        """The events of one message of a socket. Raises DecodeError where it is no batch at all."""
        return decode_batch(payload)

    def drain(self, block_tokens: int) -> Drain | None:
        """How its events are taken where it has no sockets; None where it has no other way.

        `block_tokens`: of its blocks, as far as they are known.
        """
        return None

    def findings(self, block_tokens: int) -> Sequence[Finding]:
        """What of its settings costs exactness or sight, beside what is found of every engine."""
        return ()

    def read_metrics(self, text: str, reader: MetricsReader) -> Scrape:
        """Load and facts by rank, from the text of `GET /metrics`. Never raises: what cannot be read is missing."""
        return reader.read(text)


def version_of(answer: object) -> str:
    """The version in an answer, at most 64 characters; "" where there is none."""
    return str(answer.get("version") or "")[:64] if isinstance(answer, Mapping) else ""
