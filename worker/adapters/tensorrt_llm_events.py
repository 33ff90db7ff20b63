"""Decode the JSON events of TensorRT-LLM, from `POST /kv_cache_events`.

Each event is `{"event_id", "window_size", "attention_dp_rank"?, "data": {"type": ...}}`. Taking them empties the
engine's buffer, so this must be the only consumer. Event ids have no gap unless the buffer overflowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from indexer.keys import Extra
from worker.adapters.events import EngineEvent, Group, Moved, Removed, Stored


class TensorRtLlmDecoder:
    """Keeps of each rank the id of the last event. Bounded by the ranks, of which there are at most 1,024."""

    def __init__(self) -> None:
        self.undecodable = 0
        self.block_tokens = 0
        """Tokens in a whole block; 0 before the first one was seen."""
        self._last: dict[int, int] = {}

    def decode(self, raw: Iterable[object]) -> tuple[dict[int, list[EngineEvent]], bool]:
        """Events by rank, and whether some are missing: then those before them no longer tell what is cached."""
        ranks: dict[int, list[EngineEvent]] = {}
        missing = False
        for event in raw:
            try:
                if not isinstance(event, dict):
                    raise TypeError  # noqa: TRY301 - counted like every other wrong shape
                rank = int(event.get("attention_dp_rank") or 0)
                missing = self._gap(rank, int(event["event_id"])) or missing
                decoded = self._event(event)
            except (KeyError, TypeError, ValueError):
                self.undecodable += 1
                continue
            ranks.setdefault(rank, []).extend(decoded)
        return ranks, missing

    def _gap(self, rank: int, number: int) -> bool:
        if rank not in self._last and len(self._last) >= 1024:
            raise ValueError("attention_dp_rank")
        last = self._last.get(rank)
        self._last[rank] = number
        # Below the last one the engine started anew; then, too, what came before says nothing.
        return number != 0 if last is None else number != last + 1

    def _event(self, event: Mapping[str, Any]) -> list[EngineEvent]:
        data = event["data"]
        window = int(event.get("window_size") or 0)
        # Groups are told apart by their window: the widest is followed.
        group = Group(window, window)
        match data["type"]:
            case "stored":
                return self._stored(data, group)
            case "removed":
                by_hash: list[EngineEvent] = [Removed(tuple(map(int, data["block_hashes"])), "0", window)]
                return by_hash
            case "updated":
                level = data.get("cache_level")
                if not isinstance(level, dict):
                    return []
                return [Moved(int(data["block_hash"]), str(level.get("old")), str(level.get("new")), window)]
        return []

    def _stored(self, data: Mapping[str, Any], group: Group) -> list[EngineEvent]:
        """One event a block: each has a level of its own. Blocks that are not full are left out."""
        parent = data.get("parent_hash")
        events: list[EngineEvent] = []
        for block in data["blocks"]:
            tokens = block["tokens"]
            ids = [int(token["token_id"]) for token in tokens]
            self.block_tokens = max(self.block_tokens, len(ids))
            if len(ids) < self.block_tokens:
                break  # only the last block of a sequence can be partial
            extras: list[Extra] = [_media(key) for key in block.get("mm_keys") or ()]
            lora = block.get("lora_id")
            events.append(
                Stored(
                    (int(block["block_hash"]),),
                    None if parent is None else int(parent),
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


def _media(key: Any) -> Extra:
    """(hash, offset in the block, ...) in an array or a map."""
    if isinstance(key, dict):
        return str(key["hash"]).encode(), int(key.get("start_offset") or key.get("offset") or 0)
    return str(key[0]).encode(), int(key[1])
