"""HTTP to one engine: short answers, each within a deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import orjson

from warmroute.process.bounded_http import SESSION, ReplyError, read_bounded

MOST_BYTES: Final = 8 * 1024 * 1024
"""An answer of an engine that is longer is none that is meant here: 10,000 adapters take 3 MB in /v1/models."""
MOST_CONTAINERS: Final = 1 << 20
"""Lists and objects of an answer: each takes 64 bytes and more."""
REMEDIES: Final[Mapping[int, str]] = {
    401: ": give --engine-key-file with the key that it wants",
    403: ": give --engine-key-file with the key that it wants",
    404: ": --engine and --engine-url (without /v1) must be the engine's",
}


class EngineError(Exception):
    """The engine did not answer as hoped. `refused`: nothing listens there, so its process is gone. `status`: of HTTP,
    0 where there was no answer."""

    def __init__(self, message: str, *, status: int = 0, refused: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.refused = refused


class EngineClient:
    """Calls one engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.url = url
        self._session = session

    async def text(self, path: str, *, method: str = "GET") -> str:
        """The answer's text. Raises EngineError."""
        return (await self._answer(method, path)).decode("utf-8", "replace")

    async def json(self, path: str, *, method: str = "GET", limit: int = MOST_BYTES) -> Any:
        """The answer as JSON, of at most `limit` bytes. Raises EngineError."""
        body = await self._answer(method, path, limit)
        if len(body) > MOST_CONTAINERS and body.count(b"[") + body.count(b"{") > MOST_CONTAINERS:
            raise EngineError(f"{self.url}{path}: more than {MOST_CONTAINERS} lists and objects", status=200)
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise EngineError(f"{self.url}{path} is no JSON: {error}", status=200) from error

    async def text_or_empty(self, path: str) -> str:
        """The same, "" where the engine answers with an error. Raises EngineError where it does not answer."""
        try:
            return await self.text(path)
        except EngineError as error:
            if not error.status:
                raise
            return ""

    async def json_or_none(self, path: str) -> Any:
        """The answer as JSON, None where the engine has no such path. Raises EngineError while it cannot say."""
        try:
            return await self.json(path)
        except EngineError as error:
            if not error.status or error.status >= 500:
                raise
            return None

    async def _answer(self, method: str, path: str, limit: int = MOST_BYTES) -> bytes:
        try:
            async with self._session.request(method, f"{self.url}{path}", allow_redirects=False) as response:
                if response.status != 200:
                    remedy = REMEDIES.get(response.status, "")
                    raise EngineError(f"{self.url}{path} answers {response.status}{remedy}", status=response.status)
                return await read_bounded(response, limit)
        except ReplyError as error:
            raise EngineError(f"{self.url}{path}: {error}", status=200) from error
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            raise EngineError(f"{self.url} does not answer: {error.os_error}", refused=refused) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"{self.url}{path}: {error or type(error).__name__}") from error


@asynccontextmanager
async def engine_client(url: str, *, timeout_seconds: float, key: str | None) -> AsyncIterator[EngineClient]:
    """A client for the length of a block."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    headers = {**SESSION["headers"], **({"Authorization": f"Bearer {key}"} if key else {})}
    async with aiohttp.ClientSession(timeout=timeout, **{**SESSION, "headers": headers}) as session:
        yield EngineClient(session, url)
