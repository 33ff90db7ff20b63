"""The public port: listens, owns every client connection, drains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.entrypoint.connection import Connection, Handler
from gateway.entrypoint.watch import TICK_SECONDS, Watch
from warmroute.config import GatewayConfig

__all__ = ["Handler", "Server"]

logger = logging.getLogger(__name__)

BACKLOG = 2048
CUT_SECONDS = 5.0
"""How long handlers may take to end once their connections are cut, before they are cancelled."""


class Server:
    """Serves `handler` over HTTP/1.1. Requests of one connection are handled one after another, in order."""

    def __init__(
        self,
        handler: Handler,
        config: GatewayConfig,
        *,
        on_refusal: Callable[[int], None] | None = None,
        connection_limit: int = 16_384,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """`on_refusal` is told the status of every request that was refused before it reached `handler`. At most
        `connection_limit` connections are served, further ones get 503; deadlines of clients are kept to within
        `tick_seconds`."""
        self._handler = handler
        self._config = config
        self._on_refusal = on_refusal
        self._connection_limit = connection_limit
        self._connections: Watch[Connection] = Watch(tick_seconds)
        self._listener: asyncio.Server | None = None
        self._draining = False
        self.port = 0
        """The port listened on; 0 before `start`."""

    async def start(self, *, reuse_port: bool = False) -> None:
        """Listen on config.host:config.port (0: any free port). Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._connection,
            self._config.host,
            self._config.port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._connections)

    async def drain(self, grace_seconds: float | None = None) -> None:
        """Stop accepting, let running requests finish for up to `grace_seconds` (config.drain_seconds when None), then
        cut what is left. Idle connections close at once. Returns when no connection and no handler is left."""
        self._draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in self._connections:
            connection.drain()
        grace = self._config.drain_seconds if grace_seconds is None else grace_seconds
        if not await self._connections.emptied(grace):
            logger.warning("%d connections are cut after %.1f s of grace", len(self._connections), grace)
            for connection in self._connections:
                connection.cut()
            if not await self._connections.emptied(CUT_SECONDS):
                for connection in self._connections:
                    connection.cancel()
                await self._connections.emptied(CUT_SECONDS)

    def _connection(self) -> Connection:
        busy = self._draining or len(self._connections) >= self._connection_limit
        return Connection(self._handler, self._config, self._connections, self._on_refusal, busy=busy)
