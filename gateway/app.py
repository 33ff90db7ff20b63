"""What the public port answers: routes, the way of a request through prompt and routing, metrics of its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.entrypoint.errors import JSON, send_error
from gateway.entrypoint.http import Request
from gateway.entrypoint.relay import RelayResult, relay
from gateway.entrypoint.reply import Reply
from gateway.entrypoint.upstream import UpstreamPool
from gateway.prompts.body import BadRequestError, RoutedBody, Unkeyed, parse_body
from gateway.prompts.keyer import Prompt, PromptKeyer
from gateway.routing.router import PoolRouter, RoutedRequest
from gateway.usage import read_usage
from warmroute.config import GatewayConfig
from warmroute.metrics import GatewayMetrics

GENERATION_PATHS: Final = {"/v1/chat/completions": True, "/v1/completions": False}
"""Paths that are routed by prompt, and whether the body is a chat."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool as the public port sees it. `keyer` is None where the gateway has no tokenizer for it."""

    router: PoolRouter
    keyer: PromptKeyer | None

    @property
    def name(self) -> str:
        return self.router.config.name


class App:
    """The handler of `gateway.entrypoint.server.Server`."""

    def __init__(
        self, config: GatewayConfig, pools: Mapping[str, Pool], upstreams: UpstreamPool, metrics: GatewayMetrics
    ) -> None:
        """`pools`: public model name -> pool."""
        self._config = config
        self._pools = pools
        self._upstreams = upstreams
        self._metrics = metrics
        self._started_at = int(time.time())
        self._gets: dict[str, Callable[[Reply], None]] = {
            "/health": lambda reply: reply.send(200),
            "/v1/models": self._models,
        }

    async def __call__(self, request: Request, reply: Reply) -> None:
        pool = ""
        try:
            pool = await self._route(request, reply)
        finally:
            code = str(reply.status) if reply.status is not None else "499"
            self._metrics.requests.labels(pool, code).inc()

    async def _route(self, request: Request, reply: Reply) -> str:
        """Answer the request; returns the pool that served it, "" for none."""
        path = request.path
        if path in GENERATION_PATHS:
            if request.method != "POST":
                return _refuse_method(reply, path, "POST")
            return await self._generate(request, reply, chat=GENERATION_PATHS[path])
        if path in self._gets:
            if request.method not in {"GET", "HEAD"}:
                return _refuse_method(reply, path, "GET, HEAD")
            self._gets[path](reply)
            return ""
        if path.startswith("/v1/models/") and request.method in {"GET", "HEAD"}:
            self._model(reply, path.removeprefix("/v1/models/"))
            return ""
        known = ", ".join([*GENERATION_PATHS, *self._gets])
        send_error(reply, 404, f"there is no {request.method} {path} here; known paths: {known}", code="not_found")
        return ""

    async def _generate(self, request: Request, reply: Reply, *, chat: bool) -> str:
        try:
            body = parse_body(request.body, chat=chat)
        except BadRequestError as error:
            send_error(reply, 400, str(error), param=error.param)
            return ""
        pool = self._pools.get(body.model)
        if pool is None:
            known = ", ".join(sorted(self._pools)) or "none"
            message = f"the model {body.model[:200]!r} does not exist; models here: {known}"
            send_error(reply, 404, message, param="model", code="model_not_found")
            return ""
        prompt = await self._prompt(pool, body)
        if reply.closed:
            return pool.name
        routed = RoutedRequest(pool.router, prompt)
        self._metrics.route_seconds.labels(pool.name).observe(_now() - request.arrived_at)
        result = await relay(request, request.body, reply, routed, self._upstreams, self._config)
        self._observe(request, pool, prompt, routed, result)
        return pool.name

    async def _prompt(self, pool: Pool, body: RoutedBody) -> Prompt | None:
        """The request's prompt, keyed; None (counted by reason) where it is routed by load alone."""
        reason = "no_tokenizer"
        if pool.keyer is not None:
            space = pool.router.key_space()
            reason = "no_key_space"
            if space is not None:
                prompt = await pool.keyer.key(body, space)
                if not isinstance(prompt, Unkeyed):
                    return prompt
                reason = prompt.reason
        self._metrics.load_only.labels(pool.name, reason).inc()
        return None

    def _observe(
        self, request: Request, pool: Pool, prompt: Prompt | None, routed: RoutedRequest, result: RelayResult
    ) -> None:
        metrics, name = self._metrics, pool.name
        if result.first_byte_at is not None:
            metrics.first_byte_seconds.labels(name).observe(result.first_byte_at - request.arrived_at)
        if prompt is not None:
            metrics.prompt_tokens.labels(name).inc(prompt.tokens)
            if routed.last is not None:
                metrics.matched_tokens.labels(name).inc(routed.last.terms.matched_tokens)
        usage = read_usage(result.tail, identity=result.content_encoding in {None, b"identity"})
        if usage is not None and usage.cached_tokens is not None:
            metrics.cached_tokens.labels(name).inc(usage.cached_tokens)

    # --- models ------------------------------------------------------------------------------------------------------

    def _models(self, reply: Reply) -> None:
        models = [self._model_object(name) for name in sorted(self._pools)]
        reply.send(200, (JSON,), orjson.dumps({"object": "list", "data": models}))

    def _model(self, reply: Reply, name: str) -> None:
        if name in self._pools:
            reply.send(200, (JSON,), orjson.dumps(self._model_object(name)))
        else:
            send_error(reply, 404, f"the model {name[:200]!r} does not exist", param="model", code="model_not_found")

    def _model_object(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._started_at, "owned_by": "warmroute"}


def _refuse_method(reply: Reply, path: str, allowed: str) -> str:
    message = f"{path} takes {allowed}"
    send_error(reply, 405, message, code="method_not_allowed", headers=((b"allow", allowed.encode()),))
    return ""


def _now() -> float:
    return asyncio.get_running_loop().time()
