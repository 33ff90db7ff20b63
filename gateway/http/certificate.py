"""TLS towards clients: the certificate, read again when its files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from warmroute.process.lifecycle import StartupError
from warmroute.process.watched_files import file_stamp

logger = logging.getLogger(__name__)


class Certificate:
    """The certificate and key of the public port. Handshakes use what was read last; open connections go on."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        """Raises StartupError."""
        self._files = cert_file, key_file
        self._stamp = self._files_stamp()
        try:
            self.context = self._load(None)
        except OSError as error:
            raise StartupError(
                f"gateway.tls_cert_file, gateway.tls_key_file: {cert_file} and {key_file} cannot be used: {error}. "
                "Give PEM files of a certificate chain and its key, not encrypted"
            ) from error

    def refresh(self) -> None:
        """Read the files again if they have changed; a pair that does not fit leaves the former in use."""
        stamp = self._files_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._load(None)  # first into a context that nobody uses: a half-replaced pair would break the live one
            self._load(self.context)
        except OSError as error:
            logger.warning("gateway.tls_cert_file: the certificate in use stays: %s", error)
        else:
            logger.info("the certificate is read anew from %s", self._files[0])

    def _files_stamp(self) -> tuple[object, ...]:
        return tuple(map(file_stamp, self._files))

    def _load(self, context: ssl.SSLContext | None) -> ssl.SSLContext:
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.set_alpn_protocols(["http/1.1"])
        # A password that is asked for on the terminal would hang the gateway: an encrypted key is an error.
        context.load_cert_chain(*self._files, password=lambda: b"")
        return context
