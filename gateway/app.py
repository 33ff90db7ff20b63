"""What the public port answers: routes, the way of a request through prompt and routing, metrics of its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import orjson

from gateway.entrypoint.errors import JSON, send_error
from gateway.entrypoint.http import Request
from gateway.entrypoint.relay import CLIENT_CLOSED_REQUEST, RelayResult, relay
from gateway.entrypoint.reply import Reply
from gateway.entrypoint.upstream import UpstreamPool
from gateway.prompts.body import BadRequestError, RoutedBody, Unkeyed, parse_body
from gateway.prompts.keyer import Prompt, PromptKeyer
from gateway.routing.assignment import Outcome
from gateway.routing.router import PoolRouter, RoutedRequest
from gateway.usage import read_usage
from warmroute.config import GatewayConfig
from warmroute.metrics import GatewayMetrics

NO_POOL: Final = ""
"""Label of requests that no pool served."""
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

    @property
    def routing(self) -> str:
        """How prompts are routed now, and if only by load, why."""
        if self.keyer is None:
            return "by load: no tokenizer (model_path)"
        if not self.router.index.mirror.workers:
            return "by load: no worker has published to the index yet"
        if self.router.key_space() is None:
            return "by load: no worker in the index keys with this tokenizer"
        return "by cache and load"


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
        pool = NO_POOL
        try:
            pool = await self._route(request, reply)
        except Exception:
            # The entrypoint answers 500 where nothing was sent yet.
            self.count(500 if reply.status is None else reply.status)
            raise
        code = CLIENT_CLOSED_REQUEST if reply.status is None else reply.status
        self._metrics.requests.labels(pool, str(code)).inc()

    def count(self, status: int) -> None:
        """Count a request that no pool served."""
        self._metrics.requests.labels(NO_POOL, str(status)).inc()

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
            return NO_POOL
        if path.startswith("/v1/models/") and request.method in {"GET", "HEAD"}:
            self._model(reply, unquote(path.removeprefix("/v1/models/")))
            return NO_POOL
        known = ", ".join([*GENERATION_PATHS, *self._gets])
        send_error(reply, 404, f"there is no {request.method} {path} here; known paths: {known}", code="not_found")
        return NO_POOL

    async def _generate(self, request: Request, reply: Reply, *, chat: bool) -> str:
        coding = request.header(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            send_error(reply, 415, "send the body without Content-Encoding", code="unsupported_content_encoding")
            return NO_POOL
        try:
            body = parse_body(request.body, chat=chat)
        except BadRequestError as error:
            send_error(reply, 400, str(error), param=error.param)
            return NO_POOL
        pool = self._pools.get(body.model)
        if pool is None:
            known = ", ".join(sorted(self._pools)) or "none"
            message = f"the model {body.model[:200]!r} does not exist; models here: {known}"
            send_error(reply, 404, message, param="model", code="model_not_found")
            return NO_POOL
        started_at = pool.router.clock()
        keyed = await self._key(pool, body)
        if reply.closed:
            return pool.name
        # A prompt without keys still brings work: its length, as far as it is known, is booked.
        prompt = Prompt(keyed.tokens, []) if isinstance(keyed, Unkeyed) else keyed
        routed = RoutedRequest(pool.router, prompt)
        result = await relay(request, request.body, reply, routed, self._upstreams, self._config)
        if routed.decided_at is not None:
            self._metrics.route_seconds.labels(pool.name).observe(routed.decided_at - started_at)
        if result.first_byte_at is not None:
            self._metrics.first_byte_seconds.labels(pool.name).observe(result.first_byte_at - request.arrived_at)
        if result.outcome is Outcome.COMPLETED and routed.last is not None:
            if keyed is prompt:
                self._metrics.keyed_tokens.labels(pool.name).inc(prompt.tokens)
                self._metrics.matched_tokens.labels(pool.name).inc(routed.last.terms.matched_tokens)
            self._count_usage(pool.name, result)
        return pool.name

    async def _key(self, pool: Pool, body: RoutedBody) -> Prompt | Unkeyed:
        """The request's prompt with its keys; Unkeyed, counted by reason, where it is routed by load alone."""
        if pool.keyer is None:
            keyed: Prompt | Unkeyed = Unkeyed("no_tokenizer")
        elif (space := pool.router.key_space()) is None:
            keyed = Unkeyed("no_key_space")
        else:
            keyed = await pool.keyer.key(body, space)
        if isinstance(keyed, Unkeyed):
            self._metrics.load_only.labels(pool.name, keyed.reason).inc()
        return keyed

    def _count_usage(self, pool: str, result: RelayResult) -> None:
        usage = read_usage(result.tail, identity=result.content_encoding in {None, b"identity"})
        if usage is not None and usage.cached_tokens is not None:
            self._metrics.prompt_tokens.labels(pool).inc(usage.prompt_tokens)
            self._metrics.cached_tokens.labels(pool).inc(usage.cached_tokens)

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
    return NO_POOL
