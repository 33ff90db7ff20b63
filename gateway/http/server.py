"""The public port: listens, owns every client connection, drains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from gateway.http.access_log import AccessLog
from gateway.http.certificate import Certificate
from gateway.http.connection import NO_SHAPES, Connection, Handler, Uploads
from gateway.http.deadlines import TICK_SECONDS, DeadlineWatcher
from gateway.http.errors import ErrorShape
from warmroute.config.gateway import GatewayConfig
from warmroute.process.lifecycle import StartupError

__all__ = ["Handler", "Server"]

logger = logging.getLogger(__name__)

BACKLOG = 2048
CERTIFICATE_SECONDS = 10.0
"""How often the certificate's files are looked at."""
CUT_SECONDS = 5.0
"""How long each further step may take: replies end, then connections are aborted, then handlers cancelled."""


class Server:
    """Serves `handler` over HTTP/1.1. Requests of one connection are handled one after another, in order."""

    def __init__(
        self,
        handler: Handler,
        config: GatewayConfig,
        *,
        on_refusal: Callable[[int], None] | None = None,
        on_log_drop: Callable[[int], None] | None = None,
        error_shapes: Mapping[str, ErrorShape] = NO_SHAPES,
        connection_limit: int = 16_384,
        tick_seconds: float = TICK_SECONDS,
        certificate_seconds: float = CERTIFICATE_SECONDS,
    ) -> None:
        """`on_refusal` is told the status of every request that was refused before it reached `handler`, `on_log_drop`
        how many lines of the access log were lost. `error_shapes`: by path, where it is not OpenAI's. At most
        `connection_limit` connections are served, further ones get 503; deadlines of clients are kept to within
        `tick_seconds`."""
        self._handler = handler
        self._config = config
        self._on_refusal = on_refusal
        self._error_shapes = error_shapes
        self._connection_limit = connection_limit
        self._uploads = Uploads(config.uploads_limit_bytes)
        self._connections: DeadlineWatcher[Connection] = DeadlineWatcher(tick_seconds)
        self._listeners: list[asyncio.Server] = []
        self._certificate: Certificate | None = None
        self._refresh: asyncio.TimerHandle | None = None
        self._access_log: AccessLog | None = None
        if config.access_log != "off":
            self._access_log = AccessLog(config.access_log, on_log_drop)
        self._certificate_seconds = certificate_seconds
        self._draining = False
        self.port = 0
        """The port listened on; 0 before `start`."""

    async def start(self, *, reuse_port: bool = False) -> None:
        """Listen on config.host:config.port (0: any free port), and on config.unix_socket, which is never TLS. Raises
        OSError, and StartupError for a certificate or a path that cannot be used."""
        loop = asyncio.get_running_loop()
        config = self._config
        if config.tls_cert_file is not None and config.tls_key_file is not None:
            self._certificate = Certificate(config.tls_cert_file, config.tls_key_file)
            self._schedule_refresh(loop)
        listener = await loop.create_server(
            self._connection,
            config.host,
            config.port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
            ssl=None if self._certificate is None else self._certificate.context,
            ssl_handshake_timeout=None if self._certificate is None else config.client_read_seconds,
        )
        self._listeners.append(listener)
        self.port = listener.sockets[0].getsockname()[1]
        if config.unix_socket is not None:
            path = str(config.unix_socket)
            try:
                self._listeners.append(await loop.create_unix_server(self._connection, path, backlog=BACKLOG))
            except OSError as error:
                raise StartupError(
                    f"gateway.unix_socket: cannot listen on {path}: {error}. Give a path of at most 107 bytes, in "
                    "a folder that the gateway may write to"
                ) from error
        if self._access_log is not None:
            self._access_log.start()

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._connections)

    async def drain(self, grace_seconds: float | None = None) -> None:
        """Stop accepting, let running requests finish for up to `grace_seconds` (config.drain_seconds when None), then
        cut what is left. Idle connections close at once. Returns when no connection and no handler is left."""
        self._draining = True
        for listener in self._listeners:
            listener.close()
        if self._refresh is not None:
            self._refresh.cancel()
        for connection in self._connections:
            connection.drain()
        grace = self._config.drain_seconds if grace_seconds is None else grace_seconds
        if not await self._connections.emptied(grace):
            logger.warning("%d connections are cut after %.1f s of grace", len(self._connections), grace)
            for end in (Connection.cut, Connection.abort, Connection.cancel):
                for connection in self._connections:
                    end(connection)
                if await self._connections.emptied(CUT_SECONDS):
                    break
        if self._access_log is not None:
            await self._access_log.stop()

    def _schedule_refresh(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._certificate is not None:
            self._certificate.refresh()
            self._refresh = loop.call_later(self._certificate_seconds, self._schedule_refresh, loop)

    def _connection(self) -> Connection:
        busy = self._draining or len(self._connections) >= self._connection_limit
        return Connection(
            self._handler,
            self._config,
            self._connections,
            self._on_refusal,
            self._access_log,
            self._uploads,
            self._error_shapes,
            busy=busy,
        )
