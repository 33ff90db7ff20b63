"""Replies of others over HTTP, read within a bound: neither an endless body nor one that unpacks to gigabytes.

Sessions are made with `SESSION`: they ask for replies that are not compressed, and decompress none.
"""

from __future__ import annotations

from typing import Any, Final

import aiohttp

SESSION: Final[dict[str, Any]] = {"auto_decompress": False, "headers": {"Accept-Encoding": "identity"}}
"""Arguments of `aiohttp.ClientSession`."""


class ReplyError(Exception):
    """The reply is longer than it may be, or compressed."""


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, of at most `limit` bytes; its connection is closed where it has more. Raises ReplyError, and what
    aiohttp raises."""
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in {"", "identity"}:
        response.close()
        raise ReplyError(f"the reply is compressed ({coding[:40]}), unasked")
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > limit:
            response.close()
            raise ReplyError(f"the reply has more than {limit} bytes")
    return bytes(body)
