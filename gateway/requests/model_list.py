"""`/v1/models`: the public names that a tenant may use."""

from __future__ import annotations

import time
from urllib.parse import unquote

import orjson

from gateway.http.errors import JSON, RequestError
from gateway.http.reply import Reply
from gateway.requests.models import ModelTable
from gateway.requests.paths import MODELS
from gateway.tenants.tenant import Tenant


class ModelList:
    """Answers for the models of this gateway."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models
        self._started_at = int(time.time())

    def answer(self, path: str, reply: Reply, tenant: Tenant) -> None:
        """The list, or one model. Raises RequestError."""
        names = tenant.visible(self._models.names())
        if path == MODELS:
            models = [self._shown(name) for name in names]
            reply.send(200, (JSON,), orjson.dumps({"object": "list", "data": models}))
            return
        name = unquote(path.removeprefix(MODELS + "/"))
        if name not in names:
            raise RequestError(404, f"the model {name[:200]!r} does not exist", "model_not_found", "model")
        reply.send(200, (JSON,), orjson.dumps(self._shown(name)))

    def _shown(self, name: str) -> dict[str, object]:
        shown: dict[str, object] = {"id": name, "object": "model", "created": self._started_at, "owned_by": "warmroute"}
        served = self._models.find(name)
        if served is not None and (served.alias or served.adapter):
            shown |= {"root": served.name, "parent": served.pool.router.config.model if served.adapter else None}
        return shown
