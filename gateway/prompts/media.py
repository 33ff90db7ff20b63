"""Images, audio and video within a prompt.

The engine puts as many tokens in an item's place as its processor finds right. Where the pool's configuration says how
many that are, the whole prompt is keyed, and each item's digest goes into the blocks that the item covers: two prompts
that differ in the picture alone share nothing from it on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import sys
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import orjson

from indexer.keys import TOKEN_BYTES, Extra
from warmroute.chat_template import MediaPart

_SOURCES: Final = ("image_url", "audio_url", "video_url", "input_audio")


@dataclass(frozen=True, slots=True)
class MediaSize:
    """How an item of one kind stands in a prompt of token ids."""

    placeholder: bytes
    """The id that the rendered chat has in its place, packed."""
    tokens: bytes
    """The ids that the engine puts there, packed."""


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An item of a prompt: its digest, and the positions that it covers."""

    digest: bytes
    first: int
    tokens: int


def item_digest(part: Mapping[str, Any]) -> bytes:
    """What tells one item from another: SHA-256 of a data URL's bytes, of any other URL itself.

    A `uuid` that the client names the item by stands for itself, as engines take it for the item's identity.
    """
    if (uuid := part.get("uuid")) is not None:
        return str(uuid).encode("utf-8", "surrogatepass")
    source = next((part[name] for name in _SOURCES if part.get(name) is not None), part)
    if isinstance(source, dict):
        if isinstance(data := source.get("data"), str):
            return hashlib.sha256(_decoded(data)).digest()
        source = source.get("url", source)
    if not isinstance(source, str):
        return hashlib.sha256(orjson.dumps(source, option=orjson.OPT_SORT_KEYS)).digest()
    return hashlib.sha256(_data_of(source)).digest()


def sent_bytes(part: Mapping[str, Any]) -> int:
    """How long the text is that a part's data, or where it is to be had, takes in a body."""
    size = 0
    for name in _SOURCES:
        source = part.get(name)
        values = source.values() if isinstance(source, dict) else (source,)
        size += sum(len(value) for value in values if isinstance(value, str))
    return size


def place_items(
    token_ids: bytes, items: Sequence[MediaPart], sizes: Mapping[str, MediaSize]
) -> tuple[bytes, list[PlacedItem]] | None:
    """Put each item's tokens in its placeholder's place.

    `token_ids` and the result are packed by `indexer.keys.token_bytes`. None where a kind's size is not known, and
    where there are more or fewer placeholders than items: a text that spells one out is not told from a real one.
    """
    waiting: dict[bytes, deque[MediaPart]] = {}
    for item in items:
        size = sizes.get(item.kind)
        if size is None:
            return None
        waiting.setdefault(size.placeholder, deque()).append(item)
    made: list[bytes] = []
    placed: list[PlacedItem] = []
    start = length = 0
    wanted = {int.from_bytes(placeholder, sys.byteorder) for placeholder in waiting}
    ids = array("I" if array("I").itemsize == TOKEN_BYTES else "L", token_ids)
    for place, token in enumerate(ids):
        if token not in wanted:
            continue
        offset = place * TOKEN_BYTES
        queue = waiting[token_ids[offset : offset + TOKEN_BYTES]]
        if not queue:
            return None
        item = queue.popleft()
        tokens = sizes[item.kind].tokens
        made += [token_ids[start:offset], tokens]
        length += (offset - start) // TOKEN_BYTES
        placed.append(PlacedItem(item_digest(item.part), length, len(tokens) // TOKEN_BYTES))
        length += len(tokens) // TOKEN_BYTES
        start = offset + TOKEN_BYTES
    if any(waiting.values()):
        return None
    made.append(token_ids[start:])
    return b"".join(made), placed


def block_extras(items: Sequence[PlacedItem], block_tokens: int) -> dict[int, list[Extra]]:
    """Items by the blocks that they overlap, as `indexer.keys.chain` takes them."""
    extras: dict[int, list[Extra]] = {}
    for item in items:
        last = item.first + item.tokens - 1
        for block in range(item.first // block_tokens, last // block_tokens + 1):
            extras.setdefault(block, []).append((item.digest, item.first - block * block_tokens))
    return extras


def _data_of(url: str) -> bytes:
    if not url.startswith("data:"):
        return url.encode("utf-8", "surrogatepass")
    head, comma, data = url.partition(",")
    if not comma:
        return url.encode("utf-8", "surrogatepass")
    return _decoded(data) if head.endswith(";base64") else unquote_to_bytes(data)


def _decoded(data: str) -> bytes:
    """Of base64; text that is none stands for itself."""
    try:
        return base64.b64decode(data)
    except (binascii.Error, ValueError):
        return data.encode("utf-8", "surrogatepass")
