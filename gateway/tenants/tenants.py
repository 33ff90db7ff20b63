"""Which tenant sent a request: its API key looked up in a file that may change while the gateway runs."""

from __future__ import annotations

import asyncio
import logging
from hashlib import sha256
from pathlib import Path
from typing import Final

from gateway.tenants.keys_file import KeysFile, KeysFileError, Labels, read
from gateway.tenants.metrics import TenantMetrics
from gateway.tenants.tenant import Tenant, missing_key, unknown_key
from warmroute.process.lifecycle import StartupError
from warmroute.process.watched_files import file_stamp

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
KEY_BYTES: Final = 4096
"""A longer key is unknown without being hashed."""


class Tenants:
    """The tenants in force. A file that cannot be used changes nothing: it is counted, and logged once."""

    def __init__(self, keys_file: Path, metrics: TenantMetrics) -> None:
        """Raises StartupError where the first file cannot be used."""
        self._path = keys_file
        self._metrics = metrics
        self._labels = Labels()
        self._count = 0
        self._by_digest: dict[bytes, Tenant] = {}
        self._missing = metrics.key_refusals.labels("missing")
        self._unknown = metrics.key_refusals.labels("unknown")
        self._stamp = file_stamp(keys_file)
        try:
            self._take(read(keys_file, self._labels))
        except KeysFileError as error:
            raise StartupError(f"tenants.keys_file: {str(keys_file)!r} is refused: {error}") from error

    def identify(self, authorization: bytes | None, x_api_key: bytes | None = None) -> Tenant:
        """Whose request has these headers; `x_api_key` goes before `authorization` where it is not None. Raises
        RequestError.

        The lookup compares digests, so its time tells nothing of a key.
        """
        key = x_api_key
        if key is None and authorization is not None and authorization[:7].lower() == b"bearer ":
            key = authorization[7:].strip()
        if not key:
            self._missing.inc()
            raise missing_key()
        tenant = self._by_digest.get(sha256(key).digest()) if len(key) <= KEY_BYTES else None
        if tenant is None:
            self._unknown.inc()
            raise unknown_key()
        return tenant

    def named(self, name: str) -> Tenant | None:
        """The tenant with this name, for people who ask."""
        return next((tenant for tenant in self._by_digest.values() if tenant.name == name), None)

    async def run(self) -> None:
        """Read the file again whenever it changes, links to it included, as in a mounted Secret."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.reload()

    async def reload(self) -> None:
        """Read the file if it has changed."""
        path = self._path
        if (stamp := file_stamp(path)) == self._stamp:
            return
        self._stamp = stamp  # also of a file that is refused: it is complained of once
        try:
            self._take(await asyncio.to_thread(read, path, self._labels))
        except KeysFileError as error:
            self._metrics.key_reloads.labels("refused").inc()
            logger.error("tenants.keys_file: %r is refused, the keys in use stay: %s", str(path), error)  # noqa: TRY400
            return
        self._metrics.key_reloads.labels("loaded").inc()
        logger.info("tenants.keys_file: %d tenants with %d keys", self._count, len(self._by_digest))

    def _take(self, file: KeysFile) -> None:
        self._by_digest = dict(file.by_digest)
        self._count = len(file.tenants)
        self._metrics.tenants.set(len(file.tenants))
