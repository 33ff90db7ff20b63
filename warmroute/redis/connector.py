"""Clients as the configuration says: deadlines, the one retry, TLS, credentials."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final, cast

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from warmroute.config.redis import RedisConfig
from warmroute.config.redis_url import RedisTarget
from warmroute.process.lifecycle import StartupError
from warmroute.redis.sentinel import MasterConnection, MasterPool, MasterTlsConnection, Sentinels
from warmroute.redis.server import ServerClient, TcpConnection, TlsConnection, UnixConnection

# A Sentinel is one of several: the next one is asked soon.
SENTINEL_SECONDS: Final = 1.0


class Connector:
    """Builds clients, all by one configuration."""

    def __init__(self, config: RedisConfig, *, connections: int) -> None:
        """At most so many connections to a server. Raises StartupError where TLS files cannot be used."""
        self.target: RedisTarget = config.target
        self._seconds = config.timeout_seconds
        self._tls = _tls_arguments(config) if self.target.tls else {}
        self._tcp_class = TlsConnection if self.target.tls else TcpConnection
        self._sentinel_credentials = _credentials(
            "redis.sentinel_password_file",
            config.sentinel_username,
            config.sentinel_password,
            config.sentinel_password_file,
        )
        self._arguments: dict[str, Any] = {
            "max_connections": connections,
            "db": self.target.database,
            "credential_provider": _credentials(
                "redis.password_file",
                config.username or self.target.username,
                config.password or self.target.password,
                config.password_file,
            ),
        }

    def server(self, host: str, port: int) -> ServerClient:
        """A client of the server at host:port."""
        address = {"connection_class": self._tcp_class, "host": host, "port": port, **self._tls}
        return _client(self._seconds, **address, **self._arguments)

    def local(self, path: str) -> ServerClient:
        """A client of the server at a Unix socket."""
        return _client(self._seconds, connection_class=UnixConnection, path=path, **self._arguments)

    def sentinel_master(self) -> ServerClient:
        """A client of the master that Sentinel names."""
        sentinels = Sentinels([self._sentinel(*address) for address in self.target.addresses])
        return _client(
            self._seconds,
            pool_class=MasterPool,
            master=self.target.master,
            sentinels=sentinels,
            connection_class=MasterTlsConnection if self.target.tls else MasterConnection,
            **self._tls,
            **self._arguments,
        )

    def _sentinel(self, host: str, port: int) -> ServerClient:
        return _client(
            SENTINEL_SECONDS,
            connection_class=self._tcp_class,
            max_connections=1,
            host=host,
            port=port,
            credential_provider=self._sentinel_credentials,
            **self._tls,
        )


def _client(
    seconds: float, *, pool_class: type[BlockingConnectionPool] = BlockingConnectionPool, **arguments: Any
) -> ServerClient:
    pool = pool_class(
        timeout=seconds,
        socket_timeout=None,
        socket_connect_timeout=seconds,
        health_check_interval=0,
        # Covers pooled connections that a restart of the server left stale; longer outages are the callers'.
        retry=Retry(NoBackoff(), 1),
        protocol=2,
        **arguments,
    )
    client = cast(ServerClient, ServerClient.from_pool(pool))
    client.deadline_seconds = seconds
    return client


class _Credentials(CredentialProvider):
    """Read for every connection, so that a password can be changed in its file."""

    def __init__(self, setting: str, username: str | None, password: str | None, file: Path | None) -> None:
        self._setting = setting
        self._username = username
        self._password = password
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password or ""
        if self._file is not None:
            try:
                password = self._file.read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise AuthenticationError(f"{self._setting}: {self._file} cannot be read: {error}") from error
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """What asyncio connections ask; a small local file does not hold up the loop."""
        return self.get_credentials()


def _credentials(
    setting: str, username: str | None, password: str | None, file: Path | None
) -> CredentialProvider | None:
    if username is None and password is None and file is None:
        return None
    return _Credentials(setting, username, password, file)


def _tls_arguments(config: RedisConfig) -> dict[str, Any]:
    """Arguments of redis-py's TLS connections. The files are read once here, to refuse bad ones by name."""
    for setting in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
        path: Path | None = getattr(config, setting)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise StartupError(f"redis.{setting}: {path} cannot be read: {error.strerror}") from error
    context = ssl.create_default_context()
    try:
        if config.tls_ca_file is not None:
            context.load_verify_locations(config.tls_ca_file)
    except ssl.SSLError as error:
        raise StartupError(f"redis.tls_ca_file: {config.tls_ca_file} holds no PEM certificates: {error}") from error
    try:
        if config.tls_cert_file is not None:
            context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
    except ssl.SSLError as error:
        raise StartupError(
            f"redis.tls_cert_file, redis.tls_key_file: {config.tls_cert_file} and {config.tls_key_file} are no PEM "
            f"certificate with its key: {error}"
        ) from error
    return {
        "ssl_ca_certs": config.tls_ca_file and str(config.tls_ca_file),
        "ssl_certfile": config.tls_cert_file and str(config.tls_cert_file),
        "ssl_keyfile": config.tls_key_file and str(config.tls_key_file),
        "ssl_cert_reqs": "required" if config.tls_verify else "none",
        "ssl_check_hostname": config.tls_verify and config.tls_check_hostname,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }
