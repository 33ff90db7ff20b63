"""The admin server that every part has: /healthz, /readyz, /metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from warmroute.process.bearer_tokens import Tokens

BODY_LIMIT_BYTES: Final = 65_536
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""What probes and scrapes ask; it tells of no prompt."""
Readiness = Callable[[], tuple[bool, dict[str, Any]]]
"""Says whether the part can do its work, and why, as JSON."""


class AdminSite(ABC):
    """aiohttp on a port of its own, so that probes and scrapes never share the data path's connections."""

    def __init__(self, *, body_limit_bytes: int = BODY_LIMIT_BYTES, tokens: Tokens | None = None) -> None:
        """`tokens`: asked for on all paths but OPEN_PATHS, where any are configured."""
        middlewares = [_guard(tokens)] if tokens is not None and tokens.configured else []
        self.app = web.Application(client_max_size=body_limit_bytes, middlewares=middlewares)
        self.app.router.add_get("/healthz", self._healthz)
        self.app.router.add_get("/readyz", self._readyz)
        self.app.router.add_get("/metrics", self._metrics)
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (of interest when `port` is 0). Raises OSError when it cannot."""
        runner = await self._start(lambda runner: web.TCPSite(runner, host, port))
        address: tuple[str, int] = runner.addresses[0]
        return address[1]

    async def start_unix(self, path: Path) -> None:
        """Listen on a Unix socket. Raises OSError when it cannot."""
        await self._start(lambda runner: web.UnixSite(runner, str(path)))

    async def _start(self, site: Callable[[web.AppRunner], web.BaseSite]) -> web.AppRunner:
        # Compressed bodies are refused by those who read them: none is unpacked here, whatever it may become.
        self._runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=2.0, auto_decompress=False)
        await self._runner.setup()
        try:
            await site(self._runner).start()
        except OSError:
            await self.stop()
            raise
        return self._runner

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        ready, details = await self.readiness()
        return web.json_response({"ready": ready, **details}, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(await self.metrics())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @abstractmethod
    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """What /readyz says."""

    @abstractmethod
    async def metrics(self) -> CollectorRegistry:
        """What /metrics shows."""


def _guard(tokens: Tokens) -> Middleware:
    """Before routing: who has no token learns not even which paths there are."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS or tokens.match(request.headers.get("authorization")):
            return await handler(request)
        message = "authorization: the admin token is missing or wrong; send Authorization: Bearer TOKEN"
        error = {"message": message, "type": "authentication_error", "param": None, "code": "invalid_admin_token"}
        return web.json_response({"error": error}, status=401, headers={"www-authenticate": "Bearer"})

    return guard


class AdminServer(AdminSite):
    """Of one process."""

    def __init__(
        self,
        registry: CollectorRegistry,
        ready: Readiness,
        *,
        before_scrape: Callable[[], None] | None = None,
        body_limit_bytes: int = BODY_LIMIT_BYTES,
        tokens: Tokens | None = None,
    ) -> None:
        """`before_scrape` sets gauges that are not worth keeping current all the time."""
        super().__init__(body_limit_bytes=body_limit_bytes, tokens=tokens)
        self._before_scrape = before_scrape
        self._registry = registry
        self._ready = ready

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        return self._ready()

    async def metrics(self) -> CollectorRegistry:
        if self._before_scrape is not None:
            self._before_scrape()
        return self._registry
