"""Model files in Redis: written by indexers, each once a digest, for gateways to read.

A file lies compressed (zlib) in one string, written and read in pieces, so that no call keeps Redis from others for
more than a fraction of a millisecond. It is written beside its place and put there whole; what the name promises is
checked before that, and by every reader again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from indexer.layout import file_key, files_key
from indexer.server.metrics import IndexerMetrics
from warmroute.model_files import FILES
from warmroute.redis.access import FILE_COMMANDS, indexer_rules
from warmroute.redis.client import Client

SCRIPT: Final = files("indexer.server").joinpath("files.lua").read_text(encoding="utf-8")
PIECE_BYTES: Final = 262_144
STAGED_MS: Final = 120_000
# A file is in use as long as indexers ask about it, which they do twice a minute.
IN_USE_MS: Final = 300_000


class FullError(Exception):
    """The pool's files that are in use leave no room."""


class FileStore:
    """The files of all pools. All methods raise RedisError when Redis cannot be reached or refuses the call."""

    def __init__(self, redis: Client, metrics: IndexerMetrics, *, limit_bytes: int) -> None:
        """`limit_bytes`: what the files of a pool may take, compressed."""
        self._script = redis.register_script(SCRIPT)
        self._metrics = metrics
        self._limit_bytes = limit_bytes

    async def lacking(self, pool: str, digests: Sequence[str]) -> frozenset[str]:
        """Those that are not there; the others count as in use from now on."""
        return frozenset(digest.decode() for digest in await self._call(pool, "lacking", *digests))

    async def put(self, pool: str, digest: str, compressed: bytes) -> None:
        """Keep a file whose contents have this digest; what is longest unused makes room. Raises FullError."""
        token = secrets.token_hex(8)
        for offset in range(0, len(compressed), PIECE_BYTES):
            await self._call(pool, "piece", token, offset, compressed[offset : offset + PIECE_BYTES], STAGED_MS)
        await self._call(pool, "finish", token, digest, len(compressed), FILES, self._limit_bytes, IN_USE_MS)

    async def forget(self, pool: str) -> None:
        """Delete the files of a pool that nobody publishes to any more."""
        await self._call(pool, "forget")

    async def _call(self, pool: str, operation: str, *arguments: str | bytes | int) -> list[bytes]:
        with self._metrics.ledger_seconds.labels("files").time():
            try:
                status, *rest = await self._script(
                    keys=[files_key(pool), file_key(pool, "new")], args=[operation, *arguments]
                )
            except ResponseError as error:
                if "no permissions" not in str(error).lower():
                    raise
                raise NoPermissionError(
                    f"our Redis user may not keep model files ({error}): permit it all of {', '.join(FILE_COMMANDS)}, "
                    f"or set indexer.model_files_bytes to 0. All that it needs: {indexer_rules()}"
                ) from error
        match status:
            case b"ok":
                return list(rest)
            case b"full":
                raise FullError(pool)
        raise RedisError(f"the files script answered {status!r}")
