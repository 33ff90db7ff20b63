"""TLS and the shared token of the indexer's gRPC service, on both sides: one place that reads the files.

Mutual TLS where a client CA is given, a shared token in the metadata `authorization: Bearer ...`, both or neither.
Files are read again when they change: certificates rotate without a restart, and so do tokens, since a token file may
hold the old and the new one for a while.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from warmroute.config.grpc import GrpcConfig
from warmroute.process.addresses import address
from warmroute.process.bearer_tokens import Tokens
from warmroute.process.watched_files import SecurityError, file_stamp, read_file
from warmroute.rpc.tokens import TokenInterceptor

logger = logging.getLogger(__name__)

# One answer describes all workers of a replica.
ANSWER_BYTES: Final = 67_108_864
CONNECT_MS: Final = 3_000

Metadata = tuple[tuple[str, str], ...]
ChannelOptions = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class _Pems:
    """The contents of the files; None where none is configured."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


class ServerSecurity:
    """The indexer's side."""

    def __init__(self, config: GrpcConfig) -> None:
        """Raises SecurityError."""
        _check_pairs(config)
        if config.tls_ca_file is not None and config.tls_cert_file is None:
            raise SecurityError(
                f"grpc.tls_ca_file: {str(config.tls_ca_file)!r} is refused: an indexer that checks its clients needs a "
                "certificate of its own; set grpc.tls_cert_file and grpc.tls_key_file"
            )
        self._config = config
        self._tokens = Tokens("grpc.token", config.token, config.token_file)
        self._pems = _read_pems(config)
        self._stamp = _stamp(config)

    @property
    def interceptors(self) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """For `grpc.aio.server`; empty without a token."""
        return (TokenInterceptor(self._tokens),) if self._tokens.configured else ()

    @property
    def asks_clients(self) -> bool:
        """Whether clients must show a token or a certificate."""
        return self._tokens.configured or self._config.tls_ca_file is not None

    def add_port(self, server: grpc.aio.Server, host: str, port: int) -> int:
        """Listen, with TLS where it is configured; returns the port. Raises RuntimeError when it cannot."""
        if self._pems.cert is None:
            self.warn_if_exposed(host)
            return server.add_insecure_port(address(host, port))
        credentials = grpc.dynamic_ssl_server_credentials(
            _server_configuration(self._pems),
            self._changed_configuration,  # type: ignore[arg-type]  # None is part of grpc's documented contract
            require_client_authentication=self._pems.ca is not None,
        )
        return server.add_secure_port(address(host, port), credentials)

    def warn_if_exposed(self, host: str) -> None:
        """Log where a token would cross a network in the clear."""
        if self._tokens.configured and self._pems.cert is None and not is_loopback(host):
            logger.warning(
                "grpc.token is set without TLS and the indexer listens on %s: whoever sees the traffic has the "
                "token; set grpc.tls_cert_file and grpc.tls_key_file",
                host,
            )

    def _changed_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """What handshakes use from now on, None for what they used; called at every handshake."""
        stamp = _stamp(self._config)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            self._pems = _read_pems(self._config)
        except SecurityError as error:
            # The files are replaced one by one, maybe: the last of them changes the stamp again.
            logger.warning("the certificates in use stay: %s", error)
            return None
        logger.info("the certificate is read anew from %s", self._config.tls_cert_file)
        return _server_configuration(self._pems)


class ClientSecurity:
    """The side of workers, gateways and tools."""

    def __init__(self, config: GrpcConfig) -> None:
        """Reads the files, so that what is wrong shows at the start. Raises SecurityError."""
        _check_pairs(config)
        if config.tls_cert_file is not None and config.tls_ca_file is None:
            raise SecurityError(
                f"grpc.tls_cert_file: {str(config.tls_cert_file)!r} is refused: a client with a certificate needs "
                "the CA that signs the indexer's; set grpc.tls_ca_file"
            )
        self._config = config
        self._tokens = Tokens("grpc.token", config.token, config.token_file)
        _read_pems(config)

    def channel(self, target: str, *, name: str = "", options: ChannelOptions = ()) -> grpc.aio.Channel:
        """A channel of its own connection. `name`: the host:port that `target` was resolved from.

        Raises SecurityError where the files cannot be read any more.
        """
        own = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", ANSWER_BYTES),
            # Also how long a connection may take: an address whose pod is gone answers nothing at all.
            ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
            *options,
        ]
        if self._config.tls_ca_file is None:
            return grpc.aio.insecure_channel(target, options=own)
        pems = _read_pems(self._config)
        host = self._config.tls_server_name or (name or target).rpartition(":")[0].strip("[]")
        credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        return grpc.aio.secure_channel(target, credentials, options=[*own, ("grpc.ssl_target_name_override", host)])

    def explained(self, details: str) -> str:
        """grpc's words for a failed connection, with the settings that may be why."""
        return explained(details, self._config.tls_ca_file is not None)

    def metadata(self, target: str = "") -> Metadata:
        """To be sent with every call. Raises SecurityError where the token file cannot be read any more."""
        tokens = self._tokens.read()
        if not tokens:
            return ()
        if target and self._config.tls_ca_file is None and not is_loopback(target.rpartition(":")[0].strip("[]")):
            self._tokens.warn_once(target)
        return (("authorization", f"Bearer {tokens[0].decode()}"),)


def explained(details: str, config_says_tls: bool) -> str:
    """What grpc says of a connection that failed, with the settings to look at where TLS may be why."""
    if not any(words in details for words in ("Socket closed", "handshake failed", "Hostname Verification")):
        return details
    ours = "grpc.tls_ca_file is set" if config_says_tls else "grpc.tls_ca_file is not set"
    return (
        f"{details}. TLS may be why: {ours}; it must be set exactly when the indexer has grpc.tls_cert_file, to the CA "
        "that signed that (grpc.tls_server_name: a name in it), and with tls_cert_file and tls_key_file of our own "
        "where the indexer has grpc.tls_ca_file"
    )


def _check_pairs(config: GrpcConfig) -> None:
    for one, other in (("tls_cert_file", "tls_key_file"), ("tls_key_file", "tls_cert_file")):
        if getattr(config, one) is not None and getattr(config, other) is None:
            raise SecurityError(
                f"grpc.{one}: {str(getattr(config, one))!r} is refused alone: set grpc.{other} too, or neither"
            )


def _read_pems(config: GrpcConfig) -> _Pems:
    """Raises SecurityError for files that are missing, are no PEM, or do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca = cert = key = None
    if config.tls_ca_file is not None:
        ca = read_file("grpc.tls_ca_file", config.tls_ca_file)
        try:
            context.load_verify_locations(cadata=ca.decode("ascii", errors="replace"))
        except (ssl.SSLError, ValueError) as error:
            raise SecurityError(
                f"grpc.tls_ca_file: {str(config.tls_ca_file)!r} is refused: it holds no certificate in PEM form"
            ) from error
    if config.tls_cert_file is not None and config.tls_key_file is not None:
        cert, key = (
            read_file("grpc.tls_cert_file", config.tls_cert_file),
            read_file("grpc.tls_key_file", config.tls_key_file),
        )
        try:
            # An encrypted key would else be asked for on the terminal.
            context.load_cert_chain(config.tls_cert_file, config.tls_key_file, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise SecurityError(
                f"grpc.tls_key_file: {str(config.tls_key_file)!r} is refused: it does not go with grpc.tls_cert_file "
                f"{str(config.tls_cert_file)!r} ({reason}); give the certificate's own key, in PEM form, not encrypted"
            ) from error
    return _Pems(ca, cert, key)


def _server_configuration(pems: _Pems) -> grpc.ServerCertificateConfiguration:
    if pems.cert is None or pems.key is None:
        raise AssertionError("no certificate")
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], root_certificates=pems.ca)


def _stamp(config: GrpcConfig) -> tuple[object, ...]:
    return tuple(file_stamp(path) for path in (config.tls_ca_file, config.tls_cert_file, config.tls_key_file))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host; a name other than localhost is taken for a network's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
