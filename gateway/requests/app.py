"""What the public port answers: whose request it is, which path, and the status that is counted."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from gateway.http.errors import JSON, send_error
from gateway.http.message import Request
from gateway.http.reply import Reply
from gateway.http.upstream import UpstreamPool
from gateway.requests.access import OPEN, Access
from gateway.requests.forwarder import NO_POOL, Forwarder, refuse
from gateway.requests.metrics import RequestMetrics
from gateway.requests.paths import POST_ROUTES, stored_path
from gateway.requests.pools import ModelTable, Pool
from gateway.tenants.tenant import Refusal, Tenant
from warmroute.config.gateway import GatewayConfig
from warmroute.redis.client import Client

__all__ = ["App", "Pool"]

HEALTH: Final = "/health"
MODELS: Final = "/v1/models"
READS: Final = ("GET", "HEAD")


class App:
    """The handler of `gateway.http.server.Server`."""

    def __init__(
        self,
        config: GatewayConfig,
        pools: Mapping[str, Pool],
        upstreams: UpstreamPool,
        metrics: RequestMetrics,
        access: Access = OPEN,
        redis: Client | None = None,
    ) -> None:
        """`pools`: public name of the base model -> pool. `redis`: see `Forwarder`."""
        self._metrics = metrics
        self._access = access
        self._models = ModelTable(pools)
        self.forwarder = Forwarder(config, self._models, upstreams, metrics, access, redis)
        self._started_at = int(time.time())

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What keeps it up to date."""
        shared, decisions = self.forwarder.shared, self.forwarder.decisions
        return decisions.tasks() if shared is None else [shared.run(), *decisions.tasks()]

    async def __call__(self, request: Request, reply: Reply) -> None:
        pool = NO_POOL
        try:
            pool = await self._route(request, reply)
        except Exception:
            # The entrypoint answers 500 where nothing was sent yet.
            self.count(500 if reply.status is None else reply.status)
            raise
        self._metrics.requests.labels(pool, str(reply.final_status)).inc()

    def count(self, status: int) -> None:
        """Count a request that no pool served."""
        self._metrics.requests.labels(NO_POOL, str(status)).inc()

    async def _route(self, request: Request, reply: Reply) -> str:
        """Answer the request; returns the pool that served it, "" for none."""
        path = request.path
        route = POST_ROUTES.get(path)
        if route is not None:
            reply.anthropic = route.anthropic
            tenant = self._admitted(request, reply, ("POST",), anthropic=route.anthropic)
            return NO_POOL if tenant is None else await self.forwarder.forward(request, reply, route, tenant)
        if path == HEALTH:
            if request.method in READS:
                reply.send(200)
            else:
                _refuse_method(reply, path, READS)
            return NO_POOL
        if path == MODELS or path.startswith(MODELS + "/"):
            tenant = self._admitted(request, reply, READS)
            if tenant is not None:
                self._show_models(reply, path, tenant)
            return NO_POOL
        stored = stored_path(path)
        if stored is not None:
            tenant = self._admitted(request, reply, stored.methods)
            return NO_POOL if tenant is None else await self.forwarder.forward_stored(request, reply, stored, tenant)
        known = ", ".join([*POST_ROUTES, HEALTH, MODELS])
        send_error(
            reply, 404, f"there is no {request.method} {path[:200]} here; known paths: {known}", code="not_found"
        )
        return NO_POOL

    def _admitted(
        self, request: Request, reply: Reply, methods: tuple[str, ...], *, anthropic: bool = False
    ) -> Tenant | None:
        """Whose request this is; None where it was refused."""
        if request.method not in methods:
            _refuse_method(reply, request.path, methods)
            return None
        tenant = self._access.identify(request, anthropic=anthropic)
        if isinstance(tenant, Refusal):
            refuse(reply, tenant)
            return None
        return tenant

    # --- models ------------------------------------------------------------------------------------------------------

    def _show_models(self, reply: Reply, path: str, tenant: Tenant) -> None:
        names = tenant.visible(self._models.names())
        if path == MODELS:
            models = [self._model_object(name) for name in names]
            reply.send(200, (JSON,), orjson.dumps({"object": "list", "data": models}))
            return
        name = unquote(path.removeprefix(MODELS + "/"))
        if name in names:
            reply.send(200, (JSON,), orjson.dumps(self._model_object(name)))
        else:
            send_error(reply, 404, f"the model {name[:200]!r} does not exist", param="model", code="model_not_found")

    def _model_object(self, name: str) -> dict[str, object]:
        shown: dict[str, object] = {"id": name, "object": "model", "created": self._started_at, "owned_by": "warmroute"}
        served = self._models.find(name)
        if served is not None and (served.alias or served.adapter):
            shown |= {"root": served.name, "parent": served.pool.router.config.model if served.adapter else None}
        return shown


def _refuse_method(reply: Reply, path: str, allowed: tuple[str, ...]) -> None:
    names = ", ".join(allowed)
    send_error(reply, 405, f"{path} takes {names}", code="method_not_allowed", headers=((b"allow", names.encode()),))
