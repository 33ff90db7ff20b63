"""Asks an engine for a prompt's token ids, for pools where the gateway's own are wrong.

vLLM takes the whole request at its path with `/render` added. SGLang, and vLLM without that path, have `/tokenize`,
which takes the fields that make the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import orjson

from gateway.http.upstream_security import UpstreamSecurity
from indexer.keys import token_bytes
from warmroute.process.bounded_http import SESSION, ReplyError, read_bounded

CONCURRENT: Final = 32
"""Requests to a pool's engines at a time; `ask` refuses more."""
REPLY_LIMIT_BYTES: Final = 4_194_304
"""About 600,000 ids, which take 10 ms to parse."""
_UNSERVED: Final = frozenset({404, 405, 501})
_TOKENIZE: Final = "/tokenize"
_PROMPT_FIELDS: Final = (
    "model",
    "prompt",
    "messages",
    "tools",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
)


class EngineTokensError(Exception):
    """The engine gave no token ids. `unserved`: it has no path for them."""

    def __init__(self, message: str, *, unserved: bool = False) -> None:
        super().__init__(message)
        self.unserved = unserved


class EngineTokens:
    """Asks the engines of one pool. Its user must `close` it."""

    def __init__(self, security: UpstreamSecurity | None = None) -> None:
        """`security`: TLS and credentials for the workers; None: plain HTTP."""
        self._security = security
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._under_way = 0
        self._renders = True

    async def ask(
        self, address: str, path: str, body: bytes, fields: Mapping[str, Any], seconds: float, *, renders: bool = True
    ) -> bytes:
        """Token ids of a request's prompt, packed by `indexer.keys.token_bytes`; of the first of several prompts.

        `address`: host:port of a worker. `path` and `body`: the request's, as the worker would get them. `fields`: the
        parsed body. `renders`: whether the engine's dialect has `/render`. Raises EngineTokensError, after `seconds` at
        the latest.
        """
        if self._under_way >= CONCURRENT:
            raise EngineTokensError(f"{CONCURRENT} questions are under way")
        self._under_way += 1
        try:
            timeout = aiohttp.ClientTimeout(total=seconds)
            if renders and self._renders:
                try:
                    return await self._post(address, path + "/render", body, timeout)
                except EngineTokensError as error:
                    if not error.unserved:
                        raise
                    self._renders = False
            if "prompt" not in fields and "messages" not in fields:
                raise EngineTokensError(f"{path} cannot be tokenised alone", unserved=True)
            known = orjson.dumps({name: fields[name] for name in _PROMPT_FIELDS if name in fields})
            return await self._post(address, _TOKENIZE, known, timeout)
        finally:
            self._under_way -= 1

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _post(self, address: str, path: str, body: bytes, timeout: aiohttp.ClientTimeout) -> bytes:
        if self._closed:
            raise EngineTokensError("the gateway is stopping")
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENT), **SESSION)
        security = self._security
        headers = {"Content-Type": "application/json"}
        if security is not None and security.authorization:
            headers["Authorization"] = security.authorization.decode()
        try:
            async with self._session.post(
                f"{'http' if security is None else security.scheme}://{address}{path}",
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=True if security is None or security.context is None else security.context,
                server_hostname=None if security is None else security.server_name,
            ) as response:
                if response.status != 200:
                    raise EngineTokensError(f"{path} answered {response.status}", unserved=response.status in _UNSERVED)
                return _ids(await read_bounded(response, REPLY_LIMIT_BYTES), path)
        except TimeoutError as error:
            raise EngineTokensError(f"{path} did not answer in time") from error
        except (aiohttp.ClientError, OSError, ReplyError) as error:
            raise EngineTokensError(f"{path}: {error}") from error


def _ids(content: bytes, path: str) -> bytes:
    """Reads `{"token_ids": [...]}`, a list of such objects, or `{"tokens": [...]}`."""
    try:
        reply = orjson.loads(content)
        if isinstance(reply, list) and reply:
            reply = reply[0]
        return token_bytes(reply["tokens" if path == _TOKENIZE else "token_ids"])
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise EngineTokensError(f"{path} answered something else than token ids: {error}") from error
