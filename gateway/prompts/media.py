"""Images, audio and video within a prompt.

The engine's processor decides how many tokens an item takes. Where the pool's configuration gives that number, the
whole prompt is keyed, and each item's digest goes into the keys of the blocks that it covers. So two prompts with
different images have different keys from the image on.
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
    """The token ids of an item of one kind."""

    placeholder: bytes
    """The one id in its place in the rendered chat, packed."""
    tokens: bytes
    """The ids by which the engine replaces it, packed."""


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An item of a prompt: its digest, its first token's position, and its number of tokens."""

    digest: bytes
    first: int
    tokens: int


def item_digest(part: Mapping[str, Any]) -> bytes:
    """The item's identity: SHA-256 of a data URL's bytes, or of any other URL itself.

    A `uuid` from the client is used as it is, since engines take it as the item's identity.
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
    """Bytes that a part's data or URL takes in the body, counted in characters."""
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
    where the number of placeholders is not that of the items: a text may contain the placeholder itself.
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
    """Items by the number of each block that they overlap, for `indexer.keys.chain`."""
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
    """Base64-decoded; the text's own bytes where it is not base64."""
    try:
        return base64.b64decode(data)
    except (binascii.Error, ValueError):
        return data.encode("utf-8", "surrogatepass")
