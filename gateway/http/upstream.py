"""Kept connections to workers, by (host, port)."""

from __future__ import annotations

import asyncio

from gateway.http.deadlines import TICK_SECONDS, DeadlineWatcher
from gateway.http.upstream_connection import UpstreamConnection
from gateway.http.upstream_security import UpstreamSecurity
from warmroute.config.gateway import GatewayConfig

CLOSE_SECONDS = 5.0


class ConnectionBudget:
    """How many connections to workers all pools of a process may have: past `limit` idle ones are closed.

    Those in use are bounded by the requests in flight, which are bounded by the clients' connections.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open = 0
        self._pools: list[UpstreamPool] = []

    def join(self, pool: UpstreamPool) -> None:
        """Bound this pool's connections too."""
        self._pools.append(pool)

    def opened(self) -> None:
        """One more connection."""
        self.open += 1
        if self.open > self.limit:
            for pool in self._pools:
                if pool.close_idle():
                    return


class UpstreamPool:
    """Connections to workers. One a process; belongs to the loop it is first used on.

    Bounds: those in use by the requests in flight, idle ones by `idle_per_worker` and by config.upstream_idle_seconds.
    A connection is kept only after a whole reply, with nothing unsent and nothing beyond it, and is cut when bytes
    come unasked.
    """

    def __init__(
        self,
        config: GatewayConfig,
        security: UpstreamSecurity | None = None,
        *,
        budget: ConnectionBudget | None = None,
        idle_per_worker: int = 256,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """Plain HTTP without a key where `security` is None; no bound over all workers without a `budget`. Deadlines
        are kept to within `tick_seconds`."""
        self.limits = config
        """Deadlines and attempts of the requests that go through these connections."""
        self._security = security
        self._budget = budget
        if budget is not None:
            budget.join(self)
        self._idle_per_worker = idle_per_worker
        self._watch: DeadlineWatcher[UpstreamConnection] = DeadlineWatcher(tick_seconds)
        # Insertion order is order of use; a worker's entry goes with its last idle connection.
        self._idle: dict[tuple[str, int], dict[UpstreamConnection, None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        return len(self._watch)

    @property
    def idle(self) -> int:
        """Idle connections."""
        return sum(map(len, self._idle.values()))

    @property
    def authorization(self) -> bytes:
        """Value of the header Authorization that workers want; empty: none."""
        return b"" if self._security is None else self._security.authorization

    def take(self, host: str, port: int) -> UpstreamConnection | None:
        """The idle connection used last; None when there is none."""
        idle = self._idle.get((host, port))
        while idle:
            connection, _ = idle.popitem()
            if not idle:
                del self._idle[host, port]
            if connection.usable:
                return connection
        return None

    async def connect(self, host: str, port: int) -> UpstreamConnection:
        """A new connection. Raises OSError (ssl.SSLError is one), or TimeoutError after config.connect_seconds."""
        if self._closed:
            raise ConnectionError("the gateway is shutting down")
        self._loop = asyncio.get_running_loop()
        security = self._security
        context = None if security is None else security.context
        made: list[UpstreamConnection] = []

        def make() -> UpstreamConnection:
            made.append(UpstreamConnection(self, (host, port), self.limits.header_limit_bytes))
            return made[-1]

        try:
            async with asyncio.timeout(self.limits.connect_seconds):
                _, connection = await self._loop.create_connection(
                    make,
                    host,
                    port,
                    ssl=context,
                    server_hostname=None if security is None or context is None else security.server_name or host,
                )
        except BaseException:
            # One that is made in the instant of a cancellation never hears that it is lost.
            for connection in made:
                connection.abandon()
            raise
        return connection

    async def close(self) -> None:
        """Cut every connection, those in use too, and wait until they are gone."""
        self._closed = True
        for connection in self._watch:
            connection.abort()
        await self._watch.emptied(CLOSE_SECONDS)

    def give_up(self, host: str, port: int) -> int:
        """The worker does not answer: end the requests whose replies have not begun, which may go to another one.
        Returns how many. Streams go on as long as they bring something."""
        waiting = [each for each in self._watch if each.address == (host, port) and each.waiting]
        for connection in waiting:
            connection.expire()
        return len(waiting)

    def opened(self, connection: UpstreamConnection) -> None:
        """Called by a connection once it is made."""
        self._watch.add(connection)
        if self._budget is not None:
            self._budget.opened()
        if self._closed:
            connection.abort()

    def close_idle(self) -> bool:
        """Close one idle connection, of the worker that has the most; False where there is none."""
        if not self._idle:
            return False
        address = max(self._idle, key=lambda each: len(self._idle[each]))
        idle = self._idle[address]
        connection = next(iter(idle))
        del idle[connection]
        if not idle:
            del self._idle[address]
        connection.abort()
        return True

    def free(self, connection: UpstreamConnection) -> None:
        """Called by a connection that can carry another request."""
        idle = self._idle.get(connection.address, {})
        if self._closed or self._loop is None or len(idle) >= self._idle_per_worker:
            connection.abort()
            return
        idle[connection] = None
        self._idle[connection.address] = idle
        connection.deadline = self._loop.time() + self.limits.upstream_idle_seconds

    def gone(self, connection: UpstreamConnection) -> None:
        """Called by a connection that is lost."""
        self._watch.discard(connection)
        if self._budget is not None:
            self._budget.open -= 1
        idle = self._idle.get(connection.address)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[connection.address]
