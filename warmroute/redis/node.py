"""The client of one Redis server, and how it is built from the configuration: deadlines, retries, TLS, credentials."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import hiredis
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, DataError, NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from warmroute.config.redis import RedisConfig
from warmroute.config.redis_url import RedisTarget
from warmroute.process.lifecycle import StartupError
from warmroute.redis.subscription import Subscription

# A Sentinel, or a node asked for the cluster's map, is one of several: the next one is asked soon.
QUERY_SECONDS: Final = 1.0


class Client(Redis):
    """Every command has `deadline_seconds`, waiting for a connection and the one retry included.

    redis-py's own `socket_timeout` is not used: it goes through `asyncio.wait_for`, which up to Python 3.11 swallows a
    cancellation that arrives while a write completes, and a task that cannot be cancelled cannot be ended.
    """

    deadline_seconds = 5.0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with self.deadline():
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """For what is no single command, such as a pipeline. Raises redis.exceptions.TimeoutError."""
        try:
            async with asyncio.timeout(self.deadline_seconds):
                yield
        except TimeoutError as error:
            raise RedisTimeoutError(f"Redis did not answer within {self.deadline_seconds} s") from error

    async def masters(self) -> Sequence[Client]:
        """A client of each server that takes writes: this one, but for a cluster, which has several."""
        return (self,)

    @asynccontextmanager
    async def subscription(self, channel: str) -> AsyncIterator[Subscription]:
        """Listen to a sharded channel, over a connection beyond those of the pool. Raises RedisError."""
        async with self.deadline():
            subscription = await self._subscribe(channel)
        try:
            yield subscription
        finally:
            await subscription.aclose()

    async def _subscribe(self, channel: str) -> Subscription:
        subscription = Subscription(self.connection_pool.make_connection(), channel)  # type: ignore[no-untyped-call]
        try:
            await subscription.open()
        except BaseException:
            await subscription.aclose()
            raise
        return subscription

    async def hello(self) -> dict[str, Any]:
        """What the server says of itself, permitted to every user: `version`, `role`, `mode` and more."""
        reply = await self.execute_command("HELLO", 2)
        names = [name.decode() for name in reply[::2]]
        return dict(zip(names, (v.decode() if isinstance(v, bytes) else v for v in reply[1::2]), strict=True))

    def register_script(self, script: str | bytes) -> AsyncScript:  # type: ignore[override]
        return _Script(self, script)


class _Script(AsyncScript):
    """Calls by digest, and with the text where a server does not know it: one that was restarted or failed over.

    redis-py loads the script first, which needs another permission and, in a cluster, may reach another node.
    """

    async def __call__(
        self, keys: Sequence[Any] | None = None, args: Iterable[Any] | None = None, client: Any = None
    ) -> Any:
        client = client or self.registered_client
        arguments = (len(keys or ()), *(keys or ()), *(args or ()))
        try:
            return await client.execute_command("EVALSHA", self.sha, *arguments)
        except NoScriptError:
            return await client.execute_command("EVAL", self.script, *arguments)


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


class _FastPacking:
    """A connection that writes commands by hiredis, at a ninth of the cost of redis-py's own Python."""

    def pack_command(self, *arguments: Any) -> list[bytes]:
        name, *rest = arguments
        words = name.split() if isinstance(name, (str, bytes)) else (name,)
        try:
            return [hiredis.pack_command((*words, *rest))]
        except (TypeError, OverflowError) as error:
            raise DataError(f"{words[0]!r}: Redis takes bytes, text and numbers: {error}") from error


class _TcpConnection(_FastPacking, Connection):
    pass


class _TlsConnection(_FastPacking, SSLConnection):
    pass


class _UnixConnection(_FastPacking, UnixDomainSocketConnection):
    pass


class Connector:
    """Builds clients of single servers, all by one configuration."""

    def __init__(self, config: RedisConfig, *, connections: int) -> None:
        """At most so many connections to a server. Raises StartupError where TLS files cannot be used."""
        self.target: RedisTarget = config.target
        self._config = config
        self._connections = connections
        self._tls = _tls_arguments(config) if self.target.tls else {"connection_class": _TcpConnection}
        username, password = config.username or self.target.username, config.password or self.target.password
        self._credentials = _credentials("redis.password_file", username, password, config.password_file)
        self._sentinel_credentials = _credentials(
            "redis.sentinel_password_file",
            config.sentinel_username,
            config.sentinel_password,
            config.sentinel_password_file,
        )

    def server(self, host: str, port: int) -> Client:
        """A client of the server at host:port."""
        return self._client(
            self._connections,
            self._config.timeout_seconds,
            host=host,
            port=port,
            db=self.target.database,
            credential_provider=self._credentials,
            **self._tls,
        )

    def local(self, path: str) -> Client:
        """A client of the server at a Unix socket."""
        return self._client(
            self._connections,
            self._config.timeout_seconds,
            connection_class=_UnixConnection,
            path=path,
            db=self.target.database,
            credential_provider=self._credentials,
        )

    def sentinel(self, host: str, port: int) -> Client:
        """A client of one Sentinel."""
        return self._client(
            1, QUERY_SECONDS, host=host, port=port, credential_provider=self._sentinel_credentials, **self._tls
        )

    def _client(self, connections: int, seconds: float, **arguments: Any) -> Client:
        pool = BlockingConnectionPool(
            max_connections=connections,
            timeout=seconds,
            socket_timeout=None,
            socket_connect_timeout=seconds,
            health_check_interval=0,
            # Covers pooled connections that a restart of the server left stale; longer outages are the callers'.
            retry=Retry(NoBackoff(), 1),
            protocol=2,
            **arguments,
        )
        client = cast(Client, Client.from_pool(pool))
        client.deadline_seconds = seconds
        return client


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
        "connection_class": _TlsConnection,
        "ssl_ca_certs": config.tls_ca_file and str(config.tls_ca_file),
        "ssl_certfile": config.tls_cert_file and str(config.tls_cert_file),
        "ssl_keyfile": config.tls_key_file and str(config.tls_key_file),
        "ssl_cert_reqs": "required" if config.tls_verify else "none",
        "ssl_check_hostname": config.tls_verify and config.tls_check_hostname,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }
