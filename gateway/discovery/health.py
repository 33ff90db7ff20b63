"""Active health checks: GET /health on every worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

import aiohttp

from gateway.http.upstream_security import UpstreamSecurity
from gateway.routing.census.workers import Worker
from warmroute.process.bounded_http import SESSION, ReplyError, read_bounded

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 2.0
"""An engine that stops answering is unhealthy after two of them and the pause between."""
LEFT_SECONDS: Final = 60.0
"""How long a worker that left is looked at."""
REPLY_LIMIT_BYTES: Final = 65_536
"""The status says all; of a longer body the rest is left, and its connection closed."""


class HealthChecks:
    """Checks every worker once a second, each on its own; `run` is the one task, its owner cancels and watches it.

    Bounded: at most one check a worker is under way; workers that left for LEFT_SECONDS.
    """

    def __init__(
        self,
        workers: Callable[[], Iterable[Worker]],
        security: UpstreamSecurity | None = None,
        on_unhealthy: Callable[[Worker], None] = lambda worker: None,
    ) -> None:
        """`security`: how the workers are reached; plain HTTP when None. `on_unhealthy` is told of each worker whose
        checks begin to fail."""
        self._workers = workers
        self._security = security
        self._on_unhealthy = on_unhealthy
        self._checks: dict[Worker, asyncio.Task[None]] = {}
        self._left: dict[Worker, float] = {}

    def left(self, worker: Worker) -> None:
        """Discovery dropped the worker: see for a while whether it still answers, as one does that ends in order."""
        if worker.healthy:
            self._left[worker] = time.monotonic() + LEFT_SECONDS

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, **SESSION) as session:
            try:
                while True:
                    now = time.monotonic()
                    self._left = {each: until for each, until in self._left.items() if each.healthy and now < until}
                    for worker in [*self._workers(), *self._left]:
                        if worker not in self._checks:
                            self._start(session, worker)
                    await asyncio.sleep(CHECK_SECONDS)
            finally:
                for check in self._checks.values():
                    check.cancel()
                await asyncio.gather(*self._checks.values(), return_exceptions=True)

    def _start(self, session: aiohttp.ClientSession, worker: Worker) -> None:
        check = asyncio.get_running_loop().create_task(self._check(session, worker))
        self._checks[worker] = check
        check.add_done_callback(lambda _: self._checks.pop(worker, None))

    def _get(
        self, session: aiohttp.ClientSession, worker: Worker
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        security = self._security
        if security is None:
            return session.get(f"http://{worker.target.address}/health", allow_redirects=False)
        return session.get(
            f"{security.scheme}://{worker.target.address}/health",
            allow_redirects=False,
            ssl=security.context or True,
            server_hostname=security.server_name,
            headers={"Authorization": security.authorization.decode()} if security.authorization else None,
        )

    async def _check(self, session: aiohttp.ClientSession, worker: Worker) -> None:
        was_healthy = worker.healthy
        reason = ""
        try:
            async with self._get(session, worker) as response:
                with suppress(ReplyError):
                    await read_bounded(response, REPLY_LIMIT_BYTES)
                worker.checked(time.monotonic(), healthy=response.status == 200)
                reason = f"/health answered {response.status}"
        except aiohttp.ClientConnectorError as error:
            worker.checked(time.monotonic(), healthy=False, refused=True)
            reason = str(error)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            # ValueError: a host or a reply that is none.
            worker.checked(time.monotonic(), healthy=False)
            reason = str(error) or type(error).__name__
        if worker.healthy and not was_healthy:
            logger.info("worker %s is ready", worker.name)
        elif was_healthy and not worker.healthy:
            logger.warning("worker %s is unhealthy: %s", worker.name, reason)
            self._on_unhealthy(worker)
        elif not worker.healthy and worker.failed_checks == 1:
            logger.info("worker %s is not ready yet: %s", worker.name, reason)
