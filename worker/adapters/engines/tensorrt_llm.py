"""TensorRT-LLM: JSON events that `POST /kv_cache_events` hands out once, load in statistics of iterations.

Each event is `{"event_id", "window_size", "attention_dp_rank"?, "data": {"type": ...}}`. Taking them empties the
engine's buffer, so this must be the only consumer. Event ids have no gap unless the buffer overflowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from indexer.keys import Extra
from worker.adapters.engine_metrics import MetricNames, MetricsReader, Scrape
from worker.adapters.engines.base import Drain, Engine
from worker.adapters.events import Drained, EngineEvent, Group, Moved, Removed, Stored
from worker.adapters.msgpack_events import TIERS
from worker.adapters.numbers import count
from worker.events import BlockHash, EngineLoad, Tier

_MOST_RANKS: Final = 1024
LEVELS: Final[Mapping[str, Tier]] = {**TIERS, "0": "device", "1": "host"}
"""It numbers its levels."""


class TensorRtLlmDecoder:
    """Keeps of each rank the id of the last event. Bounded by the ranks, of which there are at most 1,024."""

    def __init__(self, block_tokens: int) -> None:
        """`block_tokens`: of a whole block, as settings have it; the first block that is surely whole corrects that."""
        self.undecodable = 0
        self.block_tokens = block_tokens
        self._last: dict[int, int] = {}

    def decode(self, answer: object) -> dict[int, Drained]:
        """Events by rank. What is no event, or no list of events at all, is left out and counted."""
        if not isinstance(answer, list):
            self.undecodable += 1
            return {}
        ranks: dict[int, Drained] = {}
        for event in answer:
            try:
                if not isinstance(event, dict):
                    raise TypeError  # noqa: TRY301 - counted like every other wrong shape
                rank = _whole(event.get("attention_dp_rank") or 0)
                if self._gap(rank, _whole(event["event_id"])):
                    ranks[rank] = Drained(missing=True)
                decoded = self._event(event)
            except (LookupError, TypeError, ValueError):
                self.undecodable += 1
                continue
            ranks.setdefault(rank, Drained()).events.extend(decoded)
        return ranks

    def _gap(self, rank: int, number: int) -> bool:
        if not 0 <= rank < _MOST_RANKS:
            raise ValueError("attention_dp_rank")
        last = self._last.get(rank)
        self._last[rank] = number
        # Below the last one the engine started anew; then, too, what came before says nothing.
        return number != 0 if last is None else number != last + 1

    def _event(self, event: Mapping[str, Any]) -> list[EngineEvent]:
        data = event["data"]
        window = count(event.get("window_size"))
        # Groups are told apart by their window: the widest is followed.
        group = Group(window, window)
        match data["type"]:
            case "stored":
                return self._stored(data, group)
            case "removed":
                # Of the level that the block is on, which it does not say; there is one copy of a block.
                by_hash: list[EngineEvent] = [Removed(tuple(map(_hash, data["block_hashes"])), None, window)]
                return by_hash
            case "updated":
                level = data.get("cache_level")
                if not isinstance(level, dict):
                    return []
                return [Moved(_hash(data["block_hash"]), str(level.get("old")), str(level.get("new")), window)]
        return []

    def _stored(self, data: Mapping[str, Any], group: Group) -> list[EngineEvent]:
        """One event a block: each has a level of its own. Blocks that are not full are left out."""
        parent, blocks = data.get("parent_hash"), data["blocks"]
        events: list[EngineEvent] = []
        for number, block in enumerate(blocks):
            ids = [_whole(token["token_id"]) for token in block["tokens"]]
            if not ids:
                raise ValueError("tokens")
            if number + 1 < len(blocks) or len(ids) > self.block_tokens:
                self.block_tokens = len(ids)
            elif len(ids) < self.block_tokens:
                break  # only the last block of a sequence can be partial
            extras: list[Extra] = [_media(key) for key in block.get("mm_keys") or ()]
            lora = block.get("lora_id")
            events.append(
                Stored(
                    (_hash(block["block_hash"]),),
                    None if parent is None else _hash(parent),
                    ids,
                    len(ids),
                    f"#{lora}" if lora else "",
                    str(block.get("cache_salt") or ""),
                    [extras] if extras else None,
                    str(block.get("cache_level") or 0),
                    group,
                )
            )
            parent = block["block_hash"]
        return events


def _whole(value: object) -> int:
    """A whole number, as a number or in digits. Raises TypeError or ValueError."""
    if not isinstance(value, int | str):
        raise TypeError(value)
    return int(value)


def _hash(value: object) -> BlockHash:
    """A block's name: a number, or for some algorithms a text. Raises TypeError."""
    return value if isinstance(value, str) and not value.isdecimal() else _whole(value)


def _media(key: Any) -> Extra:
    """(hash, offset in the block, ...) in an array or a map."""
    if isinstance(key, dict):
        return str(key["hash"]).encode(), _whole(key.get("start_offset") or key.get("offset") or 0)
    return str(key[0]).encode(), _whole(key[1])


def read_iteration_stats(text: str) -> Scrape:
    """The newest of its statistics of iterations, which `GET /metrics` hands out once each."""
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return Scrape()
    stats: Any = answer[-1] if isinstance(answer, list) and answer else {}
    if not isinstance(stats, Mapping) or "numActiveRequests" not in stats:
        return Scrape()
    cache = stats.get("kvCacheStats")
    cache = cache if isinstance(cache, Mapping) else {}
    most, used = count(cache.get("maxNumBlocks")), count(cache.get("usedNumBlocks"))
    load = EngineLoad(
        running_requests=count(stats.get("numActiveRequests")),
        waiting_requests=count(stats.get("numQueuedRequests")),
        kv_cache_usage=min(1.0, used / most) if most else 0.0,
        max_running_requests=count(stats.get("maxNumActiveRequests")),
    )
    return Scrape({0: load})


class TensorRtLlm(Engine):
    """TensorRT-LLM 1.0 and later; with `--events-endpoint` its events are read from sockets, as vLLM writes them."""

    default_block_tokens = 32
    publishes_events = True
    tiers = LEVELS
    metrics = MetricNames(
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        usage=("trtllm_kv_cache_utilization",),
        rank_labels=("rank",),
    )

    def drain(self, block_tokens: int) -> Drain:
        return Drain("/kv_cache_events", TensorRtLlmDecoder(block_tokens), "set event_buffer_max_size")

    def read_metrics(self, text: str, reader: MetricsReader) -> Scrape:
        return read_iteration_stats(text) if text.lstrip()[:1] in {"[", "{"} else reader.read(text)


ENGINE: Final = TensorRtLlm()
