"""Decode the msgpack event batches of vLLM and SGLang.

A batch is an array `[time, events, data-parallel rank]`, or a map with those names in some builds. An event is a map
with "type" (vLLM from 0.24 on, SGLang), or an array of the type and then its fields by position (before). Fields that
are not known here are passed over; missing ones mean what their absence meant in the versions without them. One bad
event costs one event.

msgpack is as fast here as msgspec (0.3 us a block of 16 tokens), and a dependency already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack

from indexer.keys import Extra
from worker.adapters.events import (
    FULL_ATTENTION_WINDOW,
    ONLY_GROUP,
    Cleared,
    DecodeError,
    EngineBatch,
    EngineEvent,
    Group,
    Removed,
    Stored,
)
from worker.events import BlockHash, Tier

TIERS: Final[Mapping[str, Tier]] = {
    "": "device",
    "GPU": "device",
    "CPU": "host",
    "cpu": "host",
    "CPU_PINNED": "host",
}
"""Words of this format for where a block lies; vLLM before 0.10.2 writes none."""

# Fields by position, as vLLM 0.10 to 0.23 wrote them; each release added at the end.
_STORED: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED: Final = ("block_hashes", "medium", "group_idx")
_FULL_KINDS: Final = frozenset({None, "full_attention", "mla_attention", "mla"})
# Groups that keep a state and no tokens are of no use, whatever window they name.
_STATE_KINDS: Final = frozenset({"mamba", "short_conv", "linear_attention", "gdn_attention", "cross_attention"})
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a message. A prompt of a million tokens takes 5 MB, and its hashes 2."""
_MOST_ITEMS: Final = 1 << 21
"""Of one list, such as token ids."""
_MOST_CONTAINERS: Final = 1 << 18
"""Lists and maps of a message: it may have an event a block, and of each block a list of extra keys."""

Fields = Mapping[str, Any]


def decode_batch(payload: bytes) -> EngineBatch:
    """The events of one message. Raises DecodeError where it is no batch at all."""
    if len(payload) > _MOST_BYTES:
        raise DecodeError(f"a message of {len(payload)} bytes; {_MOST_BYTES} at most")
    counted = _Containers()
    try:
        batch = msgpack.unpackb(
            payload,
            strict_map_key=False,
            object_hook=counted.one_more,
            list_hook=counted.one_more,
            max_array_len=_MOST_ITEMS,
            max_map_len=_MOST_ITEMS,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:  # TypeError: a list as a key
        raise DecodeError(f"no msgpack: {error}") from error
    match batch:
        case {"ts": at, "events": raw} | [at, raw, *_]:
            pass
        case _:
            raise DecodeError(f"no batch of events but {type(batch).__name__}")
    if not isinstance(at, int | float) or not math.isfinite(at) or not isinstance(raw, list):
        raise DecodeError("a batch without a time and a list of events")
    events: list[EngineEvent] = []
    undecodable = ignored = 0
    for event in raw:
        try:
            decoded = _event(event)
        except (LookupError, TypeError, ValueError):
            undecodable += 1
            continue
        if decoded is None:
            ignored += 1
        else:
            events.append(decoded)
    return EngineBatch(float(at), events, undecodable, ignored)


class _Containers:
    """Counts the lists and maps of a message. Each costs 60 bytes and more, a byte of the message alone."""

    def __init__(self) -> None:
        self._left = _MOST_CONTAINERS

    def one_more(self, made: Any) -> Any:
        """Raises ValueError when there are too many."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {_MOST_CONTAINERS} lists and maps")
        return made


def _event(event: object) -> EngineEvent | None:
    """Raises LookupError, TypeError or ValueError for an event of a wrong shape."""
    fields: Fields
    if isinstance(event, dict):
        kind, fields = event.get("type"), event
    elif isinstance(event, list) and event:
        kind = event[0]
        names = _STORED if kind == "BlockStored" else _REMOVED
        fields = dict(zip(names, event[1:], strict=False))
    else:
        raise TypeError
    match kind:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            return Removed(_hashes(fields), _text(fields.get("medium")), _whole(fields, "group_idx"))
        case "AllBlocksCleared":
            return Cleared()
        case str():
            return None  # a kind of a later version
    raise ValueError(kind)


def _stored(fields: Fields) -> Stored:
    hashes = _hashes(fields)
    parent = fields.get("parent_block_hash")
    if parent is not None and not isinstance(parent, int | bytes):
        raise TypeError("parent_block_hash")
    token_ids = fields.get("token_ids") or []
    if not isinstance(token_ids, list):
        raise TypeError("token_ids")
    if token_ids and isinstance(token_ids[0], list):
        # Pages of SGLang's EAGLE trees hold pairs of neighbouring tokens.
        token_ids = [pair[0] for pair in token_ids]
    adapter = _text(fields.get("lora_name"))
    salt = _text(fields.get("cache_salt"))
    lora_id = fields.get("lora_id")
    extras: list[list[Extra]] | None = None
    extra_keys = fields.get("extra_keys")
    if extra_keys and any(extra_keys):
        adapter, first_salt, extras = _extra_keys(extra_keys, adapter, lora_id, root=parent is None)
        if extras is not None and len(extras) != len(hashes):
            raise ValueError("extra_keys")
        salt = salt or first_salt
    if not adapter and lora_id is not None:
        # vLLM before 0.16 says a number only: never the base model's blocks.
        adapter = f"#{lora_id}"
    return Stored(
        hashes,
        parent,
        token_ids,
        _whole(fields, "block_size"),
        adapter,
        salt,
        extras,
        _text(fields.get("medium")),
        _group(fields) if fields.get("group_idx") or fields.get("kv_cache_spec_kind") else ONLY_GROUP,
        lora_id if isinstance(lora_id, int) else None,
    )


def _hashes(fields: Fields) -> Sequence[BlockHash]:
    hashes = fields["block_hashes"]
    if not isinstance(hashes, list):
        raise TypeError("block_hashes")
    for block_hash in hashes:
        if not isinstance(block_hash, int | bytes):
            raise TypeError("block_hashes")
    return hashes


def _whole(fields: Fields, name: str) -> int:
    value = fields.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or value < 0:
        raise TypeError(name)
    return value


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _group(fields: Fields) -> Group:
    number, kind = _whole(fields, "group_idx"), fields.get("kv_cache_spec_kind")
    if kind in _FULL_KINDS:
        return ONLY_GROUP if number == 0 else Group(number)
    window = fields.get("kv_cache_spec_sliding_window")
    if kind in _STATE_KINDS or not isinstance(window, int):
        return Group(number, 0)
    return Group(number, min(window, FULL_ATTENTION_WINDOW - 1))


def _extra_keys(
    extra_keys: Sequence[Any], adapter: str, lora_id: object, *, root: bool
) -> tuple[str, str, list[list[Extra]] | None]:
    """What else is in the hashes: the adapter's name, the salt (on the first block of a prompt), items of each block.

    In order: name of the adapter, (identifier, offset) of items, salt, digests of embeddings; in later versions perhaps
    with a word before each, as in the hash itself.
    """
    salt = ""
    items: list[list[Extra]] = []
    for number, keys in enumerate(extra_keys):
        found: list[Extra] = []
        for place, key in enumerate(keys or ()):
            match key:
                case ["mm", str() | bytes() as identifier, int() as offset] | [
                    str() | bytes() as identifier,
                    int() as offset,
                ]:
                    found.append((_bytes(identifier), offset))
                case ["lora", str() as name, *_]:
                    adapter = adapter or name
                case ["cache_salt", str() as text]:
                    salt = text
                case str() if place == 0 and (key == adapter or (not adapter and lora_id is not None)):
                    adapter = key
                case str() if root and number == 0 and not salt:
                    salt = key
                case str() | bytes():
                    found.append((_bytes(key), 0))
                case ["prompt_embeds", str() | bytes() as digest]:
                    found.append((_bytes(digest), 0))
                case _:
                    raise ValueError("extra_keys")
        items.append(found)
    return adapter, salt, items if any(items) else None


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
