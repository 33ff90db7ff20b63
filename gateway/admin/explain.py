"""What a gateway would do with a request, had it come now: how its prompt is keyed, and how it is routed.

The request passes the stages of one from a client up to the choice of a worker (`App.serve`, `PoolRouter.choose`) and
no further: nothing is admitted, booked, numbered, expected or counted, but for the call to Redis that finds who has a
stored response. Where replies have shown that the gateway's own token ids are wrong, the engine is asked for them, as
for any request.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, Literal

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.prompts.body import routed_body
from gateway.prompts.prompt_input import Chat, Unkeyed
from gateway.prompts.segments import Segment, explain_prompt
from gateway.requests.app import App
from gateway.requests.inference_request import UNKNOWN_PROMPT, InferenceRequest
from gateway.requests.paths import POST_ROUTES, Route
from gateway.routing.explanation import RoutingView, explain_routing
from gateway.tenants.tenant import ANONYMOUS, Tenant

logger = logging.getLogger(__name__)

SEGMENTS_WORK: Final = 50_000_000
"""Messages times bytes of a request whose tokens are still ascribed to its parts, about half a second on a thread."""


@dataclass(frozen=True, slots=True)
class PromptView:
    """How a prompt is keyed. `load_only`: why it has no keys, so that it is routed by load alone; None where it has.
    `exact`: whether the engine is known to count the same tokens. `counted_by`: whose token ids they are, the engine's
    where this gateway's own were found wrong. `tokens` is an estimate without keys, 0 where nothing is known.
    `segments`: which part of the request each keyed token came from, None for a prompt without keys or too long to say.
    """

    tokens: int
    blocks: int
    index_block_tokens: int | None
    load_only: str | None
    exact: bool
    counted_by: Literal["gateway", "engine"]
    salted: bool
    segments: list[Segment] | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Field names are part of the interface: they are added to, never renamed. `routing`: how the pool's prompts are
    routed now, and if only by load, why. `model`: the engine's name for it."""

    path: str
    pool: str
    model: str
    adapter: str
    tenant: str
    routing: str
    prompt: PromptView
    decision: RoutingView


class Explainer:
    """Explains requests, for the admin port."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def explain(self, http: Request, tenant_name: str | None = None) -> Explanation:
        """`http`: as a client would send it; its key is not looked at, since `tenant_name` says whose it is.
        Raises RequestError."""
        route = POST_ROUTES.get(http.path)
        if route is None:
            raise RequestError(404, f"path: {http.path[:200]} is none of: {', '.join(POST_ROUTES)}", None, "path")
        tenant = self._tenant(tenant_name)
        try:
            return await self._explained(http, route, tenant)
        finally:
            self._app.resolver.turns.give(http)

    async def _explained(self, http: Request, route: Route, tenant: Tenant) -> Explanation:
        app = self._app
        request = await app.resolver.resolve(http, route, tenant)
        await app.resolver.permit(request)
        await app.make_prompt(request)
        pool, served = request.pool, request.served
        keyed, prompt = request.keyed, request.prompt or UNKNOWN_PROMPT
        space = request.census.space
        return Explanation(
            path=http.path,
            pool=pool.name,
            model=served.name,
            adapter=served.adapter,
            tenant=tenant.name,
            routing=pool.routing,
            prompt=PromptView(
                tokens=prompt.tokens,
                blocks=len(prompt.keys),
                index_block_tokens=None if space is None else space.index_block_tokens,
                load_only=keyed.reason if isinstance(keyed, Unkeyed) else None,
                exact=not isinstance(keyed, Unkeyed) and keyed.exact,
                counted_by="engine" if _is_engines(request) else "gateway",
                salted=route.salted and app.access.salts.separates(tenant),
                segments=await _segments(request),
            ),
            decision=explain_routing(pool.router, prompt, request.constraints()),
        )

    def _tenant(self, name: str | None) -> Tenant:
        tenants = self._app.access.tenants
        if tenants is None:
            if name is not None:
                raise RequestError(400, "tenant: this gateway has no tenants; leave it out", None, "tenant")
            return ANONYMOUS
        if name is None:
            message = "tenant: it is missing, and this gateway serves tenants alone; say whose request it is, by name"
            raise RequestError(400, message, None, "tenant")
        tenant = tenants.named(name)
        if tenant is None:
            raise RequestError(404, f"tenant: there is no tenant {name[:200]!r} in the keys file", None, "tenant")
        return tenant


def _is_engines(request: InferenceRequest) -> bool:
    return request.check is not None and not request.check.trusted and not isinstance(request.keyed, Unkeyed)


async def _segments(request: InferenceRequest) -> list[Segment] | None:
    keyer, fields, size, kind = request.pool.keyer, request.fields, len(request.body), request.route.prompt
    if keyer is None or fields is None or kind is None or isinstance(request.keyed, Unkeyed):
        return None
    prompt = routed_body(fields, size, kind).prompt
    parts = len(prompt.messages) if isinstance(prompt, Chat) else 1
    if isinstance(prompt, Unkeyed) or parts * size > SEGMENTS_WORK:
        return None
    try:
        made = await asyncio.to_thread(explain_prompt, keyer.encoder, prompt)
    except Exception:
        # What keying passed, this passes too, unless the tokenizer is being replaced.
        logger.exception("a prompt's tokens could not be ascribed to its parts")
        return None
    return None if isinstance(made, Unkeyed) else made
