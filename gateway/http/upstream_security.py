"""TLS towards the workers of a pool, and the key and the certificate that they are shown."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from warmroute.config.pool import PoolConfig, UpstreamTlsConfig
from warmroute.process.lifecycle import StartupError
from warmroute.process.watched_files import file_stamp

logger = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 10.0
KEY_LIMIT_BYTES: Final = 4096


class UpstreamSecurity:
    """How connections to a pool's workers are made. Files are read again when they change: new connections use what
    was read last, open ones go on."""

    def __init__(self, config: PoolConfig) -> None:
        """Raises StartupError."""
        self._tls = config.upstream_tls
        self._key_file = config.upstream_key_file
        self._name = config.name
        self._stamps = self._file_stamps()
        self.context: ssl.SSLContext | None = None
        """None: no TLS."""
        self.authorization = b""
        """Value of the header Authorization; empty: none is sent."""
        self._read()

    @property
    def scheme(self) -> str:
        return "http" if self._tls is None else "https"

    @property
    def server_name(self) -> str | None:
        """The name that certificates must have; None: the host that is connected to."""
        return None if self._tls is None else self._tls.server_name

    async def run(self) -> None:
        """Look at the files from time to time; does not end by itself."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Read the files again if they have changed; those that cannot be used leave the former in use."""
        stamps = self._file_stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._read()
        except StartupError as error:
            logger.warning("what was read before stays in use: %s", error)
        else:
            logger.info("pool %s: authorities, certificate and key towards its workers are read anew", self._name)

    def _read(self) -> None:
        context = None if self._tls is None else self._context(self._tls)
        if self._key_file is not None:
            self.authorization = b"Bearer " + self._key(self._key_file)
        self.context = context

    def _context(self, config: UpstreamTlsConfig) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=config.ca_file)
        except OSError as error:
            raise StartupError(
                f"gateway.pools: upstream_tls.ca_file of {self._name}: {config.ca_file} cannot be used: {error}. "
                "Give a PEM file of the authorities that sign the workers' certificates"
            ) from error
        if config.cert_file is not None and config.key_file is not None:
            try:
                # A password that is asked for on the terminal would hang the gateway: an encrypted key is an error.
                context.load_cert_chain(config.cert_file, config.key_file, password=lambda: b"")
            except OSError as error:
                raise StartupError(
                    f"gateway.pools: upstream_tls.cert_file, upstream_tls.key_file of {self._name}: {config.cert_file} "
                    f"and {config.key_file} cannot be used: {error}. Give PEM files of a certificate chain and its "
                    "key, not encrypted"
                ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if not config.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _key(self, path: Path) -> bytes:
        where = f"gateway.pools: upstream_key_file of {self._name}: {path}"
        try:
            with path.open("rb") as file:
                key = file.read(KEY_LIMIT_BYTES + 2).strip()
        except OSError as error:
            raise StartupError(f"{where} cannot be read: {error}") from error
        if not 1 <= len(key) <= KEY_LIMIT_BYTES or not all(0x21 <= byte <= 0x7E for byte in key):
            raise StartupError(
                f"{where} is refused: it must hold one key of 1 to {KEY_LIMIT_BYTES} visible ASCII characters"
            )
        return key

    def _file_stamps(self) -> tuple[object, ...]:
        tls = self._tls
        files = self._key_file, *(() if tls is None else (tls.ca_file, tls.cert_file, tls.key_file))
        return tuple(file_stamp(file) for file in files if file is not None)
