"""What a gateway would do with a request, had it come now: how its prompt is keyed, and how it is routed.

The request goes the way of one from a client up to the choice of a worker (`Forwarder.prepare`, `PoolRouter.decide`)
and no further: nothing is admitted, booked, numbered, expected or counted. Where replies have shown that the gateway's
own token ids are wrong, the engine is asked for them, as for any request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.http.message import Request
from gateway.prompts.body import BadRequestError, BodyKind, routed_body
from gateway.prompts.conversation import Chat, Unkeyed
from gateway.prompts.keyer import PromptKeyer
from gateway.prompts.segments import Segment, explain_prompt
from gateway.requests.access import Access
from gateway.requests.forwarder import Forwarder, Prepared, parse
from gateway.requests.hints import read_hints
from gateway.requests.paths import POST_ROUTES
from gateway.requests.pins import pinned
from gateway.requests.pools import Pool
from gateway.routing.candidates import Constraints
from gateway.routing.explanation import RoutingView, explain_routing
from gateway.routing.state.sessions import NO_SESSION, session_key
from gateway.tenants.tenant import ANONYMOUS, Refusal, Tenant, unsalted_refusal

logger = logging.getLogger(__name__)

SEGMENTS_WORK: Final = 50_000_000
"""Messages times bytes of a request whose tokens are still ascribed to its parts, about half a second on a thread."""


class ExplainError(Exception):
    """The request would be refused, or names what is not here. `status`, `param` and `code` as in an error reply."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


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

    def __init__(self, forwarder: Forwarder, access: Access) -> None:
        self._forwarder = forwarder
        self._access = access

    async def explain(self, request: Request, tenant_name: str | None = None) -> Explanation:
        """`request`: as a client would send it; its key is not looked at, since `tenant_name` says whose it is.
        Raises ExplainError."""
        route = POST_ROUTES.get(request.path)
        if route is None:
            raise ExplainError(404, f"path: {request.path[:200]} is none of: {', '.join(POST_ROUTES)}", param="path")
        tenant = self._tenant(tenant_name)
        try:
            parsed = parse(request, route)
        except BadRequestError as error:
            raise ExplainError(400, str(error), param=error.param) from error
        forwarder = self._forwarder
        served = forwarder.served(parsed, tenant)
        if isinstance(served, Refusal):
            raise _refused(served)
        if forwarder.unsalted(request.path, route, served, tenant):
            raise _refused(unsalted_refusal(request.path))
        pool, fields = served.pool, parsed.fields
        within = pinned(request, pool.router, tenant)
        if isinstance(within, Refusal):
            raise _refused(within)
        session = read_hints(request, fields).session
        prepared = await forwarder.prepare(request, route, tenant, parsed, served, counted=False)
        keyed = prepared.keyed.prompt
        space = pool.router.census.current().space
        return Explanation(
            path=request.path,
            pool=pool.name,
            model=served.name,
            adapter=served.adapter,
            tenant=tenant.name,
            routing=pool.routing,
            prompt=PromptView(
                tokens=prepared.prompt.tokens,
                blocks=len(prepared.prompt.keys),
                index_block_tokens=None if space is None else space.index_block_tokens,
                load_only=keyed.reason if isinstance(keyed, Unkeyed) else None,
                exact=not isinstance(keyed, Unkeyed) and keyed.exact,
                counted_by="engine" if _is_engines(prepared) else "gateway",
                salted=route.salted and self._access.salts.separates(tenant),
                segments=await _segments(pool.keyer, fields, len(prepared.body), route.prompt, prepared),
            ),
            decision=explain_routing(
                pool.router,
                prepared.prompt,
                Constraints(
                    adapter=served.adapter,
                    only=self._owner(pool, fields, tenant) if route.stores else None,
                    within=within,
                    session=NO_SESSION if session is None else session_key(tenant.name, session),
                ),
            ),
        )

    def _tenant(self, name: str | None) -> Tenant:
        tenants = self._access.tenants
        if tenants is None:
            if name is not None:
                raise ExplainError(400, "tenant: this gateway has no tenants; leave it out", param="tenant")
            return ANONYMOUS
        if name is None:
            message = "tenant: it is missing, and this gateway serves tenants alone; say whose request it is, by name"
            raise ExplainError(400, message, param="tenant")
        tenant = tenants.named(name)
        if tenant is None:
            raise ExplainError(404, f"tenant: there is no tenant {name[:200]!r} in the keys file", param="tenant")
        return tenant

    def _owner(self, pool: Pool, fields: Mapping[str, Any] | None, tenant: Tenant) -> str | None:
        """The worker that alone can continue the response that the request names, as far as this gateway knows it."""
        previous = None if fields is None else fields.get("previous_response_id")
        owner = self._forwarder.stored.peek(previous) if isinstance(previous, str) else None
        if owner is None or owner.pool != pool.name or owner.tenant != tenant.name:
            return None
        return owner.worker


def _is_engines(prepared: Prepared) -> bool:
    check = prepared.keyed.check
    return check is not None and not check.trusted and not isinstance(prepared.keyed.prompt, Unkeyed)


async def _segments(
    keyer: PromptKeyer | None, fields: Mapping[str, Any] | None, size: int, kind: BodyKind | None, prepared: Prepared
) -> list[Segment] | None:
    if keyer is None or fields is None or kind is None or isinstance(prepared.keyed.prompt, Unkeyed):
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


def _refused(refusal: Refusal) -> ExplainError:
    return ExplainError(refusal.status, refusal.message, param=refusal.param, code=refusal.code)
