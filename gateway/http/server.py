"""The public port: listens, owns every client connection, drains."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from heapq import nsmallest

from gateway.http.access_log import AccessLog
from gateway.http.certificate import Certificate
from gateway.http.connection import NO_SHAPES, CheckHead, Connection, Handler
from gateway.http.deadlines import TICK_SECONDS, DeadlineWatcher
from gateway.http.errors import ErrorShape
from gateway.http.uploads import Reason, Uploads
from warmroute.config.gateway import GatewayConfig
from warmroute.process.lifecycle import StartupError

__all__ = ["Handler", "Server"]

logger = logging.getLogger(__name__)

BACKLOG = 2048
CONNECTION_LIMIT = 16_384
SHED_SHARE = 16
"""One in so many connections, the idle ones that have waited longest, is closed at once where the limit is reached: to
look for one alone at every new connection would cost a walk over all."""
SHED_IDLE_SECONDS = 1.0
"""Only connections that have been idle for so long: the request of a new one is on its way."""
SHED_SECONDS = 0.05
"""Between two such walks."""
LINGERING_SHARE = 4
LEAST_LINGERING = 8
"""Refused connections that may take their time to read the 503, as a share of the limit and at least; then the oldest
are cut."""
LOG_SECONDS = 10.0
"""Between two lines of the log that tell of a full server."""
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
        on_full: Callable[[str, int], None] | None = None,
        on_body_refusal: Callable[[Reason], None] | None = None,
        check_head: CheckHead | None = None,
        error_shapes: Mapping[str, ErrorShape] = NO_SHAPES,
        connection_limit: int = CONNECTION_LIMIT,
        tick_seconds: float = TICK_SECONDS,
        certificate_seconds: float = CERTIFICATE_SECONDS,
    ) -> None:
        """`on_refusal` is told the status of every request that was refused before it reached `handler`, `on_log_drop`
        how many lines of the access log were lost, `on_body_refusal` why a body was not taken. `check_head`: see
        `CheckHead`. `error_shapes`: by path, where it is not OpenAI's. At most `connection_limit` connections are
        served: for a further one the longest idle are closed, and where none is idle it gets 503; `on_full` is told
        "closed" or "refused" and how many. Deadlines of clients are kept to within `tick_seconds`."""
        self._handler = handler
        self._config = config
        self._on_refusal = on_refusal
        self._error_shapes = error_shapes
        self._connection_limit = connection_limit
        self._on_full = on_full
        self._shed_at = self._logged_at = -math.inf
        self._refused: deque[Connection] = deque()
        """The latest refused for want of room; a client that reads its 503 slowly keeps its descriptor for a while."""
        self._spare = 0
        """Connections that were closed for others and are still counted."""
        self._uploads = Uploads(config.uploads_limit_bytes, config.client_uploads_limit, on_body_refusal)
        self._check_head = check_head
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

    @property
    def body_bytes(self) -> int:
        """Bytes of request bodies that are held, small ones not counted."""
        return self._uploads.bytes

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
        full = len(self._connections) >= self._connection_limit
        if not full:
            self._spare = 0
        busy = self._draining or (full and not self._shed())
        connection = Connection(
            self._handler,
            self._config,
            self._connections,
            self._on_refusal,
            self._access_log,
            self._uploads,
            self._error_shapes,
            self._check_head,
            busy=busy,
        )
        if busy:
            self._refused.append(connection)
            if len(self._refused) > max(LEAST_LINGERING, self._connection_limit // LINGERING_SHARE):
                self._refused.popleft().abort()
        return connection

    def _shed(self) -> bool:
        """The server is full: close the connections that have been idle longest. Whether there is room now."""
        if self._spare:
            self._spare -= 1
            return True
        now = asyncio.get_running_loop().time()
        shed: list[Connection] = []
        if now >= self._shed_at + SHED_SECONDS:
            self._shed_at = now
            # All idle connections have the same time, so the earliest deadline is the longest wait.
            latest = now + self._config.client_idle_seconds - SHED_IDLE_SECONDS
            idle = [connection for connection in self._connections if connection.idle and connection.deadline <= latest]
            shed = nsmallest(1 + self._connection_limit // SHED_SHARE, idle, key=lambda each: each.deadline)
            for connection in shed:
                connection.abort()
            self._spare = max(len(shed) - 1, 0)
        if self._on_full is not None:
            self._on_full("closed" if shed else "refused", len(shed) or 1)
        if now >= self._logged_at + LOG_SECONDS:
            self._logged_at = now
            logger.warning(
                "all %d connections are taken: %s. Start more gateways, or raise the limit of open files (ulimit -n)",
                self._connection_limit,
                f"the {len(shed)} longest idle are closed" if shed else "a new one is refused, since none is idle",
            )
        return bool(shed)
