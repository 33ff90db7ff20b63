"""The way of a request to a worker: whose it is, which model, what changes in it, where it goes, what it used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.engines import registry as engines
from gateway.http.errors import send_error
from gateway.http.message import Request
from gateway.http.reply import Reply
from gateway.http.upstream import UpstreamPool
from gateway.prompts.body import BadRequestError, Unkeyed, model_name, parse_object
from gateway.prompts.keyer import CHARACTERS_PER_TOKEN, Prompt
from gateway.requests.access import Access
from gateway.requests.decisions import Decisions
from gateway.requests.hints import Hints, read_hints
from gateway.requests.json_members import splice
from gateway.requests.metrics import RequestMetrics
from gateway.requests.multipart import FormModel, form_model, is_form
from gateway.requests.paths import Route, StoredPath
from gateway.requests.pins import pinned
from gateway.requests.pools import ModelTable, Pool, Served
from gateway.requests.prompt_source import Keyed, PromptSource
from gateway.requests.relay import RelayResult, relay
from gateway.requests.reply_edits import ReplyEdits
from gateway.requests.request_edits import RequestEdits, lacks_usage
from gateway.requests.shared_responses import SharedResponses
from gateway.requests.stored_responses import Owner, StoredResponses
from gateway.requests.usage import Usage, read_usage
from gateway.routing.assignment import Outcome
from gateway.routing.routed_request import RoutedRequest
from gateway.routing.state.sessions import NO_SESSION, session_key
from gateway.tenants.limiter import Admission
from gateway.tenants.tenant import Refusal, Tenant, model_refusal, unsalted_refusal
from warmroute.config.gateway import GatewayConfig
from warmroute.redis.client import Client

INLINE_BYTES: Final = 65_536
"""A body of this size is edited within 10 ms, whatever is in it; a larger one in a thread."""
CONTAINERS_LIMIT: Final = 1_000_000
"""Most lists and objects of a body. Each costs the parser 0.2 us and 64 bytes, so that 32 MiB of them would stop every
stream for two seconds and take a GB."""
EXPLAIN_HEADER: Final = b"x-warmroute-explain"
"""With the value 1 it asks for the decision in the reply's head."""
NO_POOL: Final = ""
"""Label of requests that no pool served."""
_UNKNOWN: Final = Prompt(0, [])
"""Of a request of which not even the length is known; nobody changes it."""


@dataclass(slots=True)  # not frozen: see Request
class Parsed:
    """What was read of a body. `fields` is None for a form, `model` where none is named."""

    model: str | None
    fields: Mapping[str, Any] | None
    form: FormModel | None = None


@dataclass(slots=True)  # not frozen: see Request
class Prepared:
    """A request on its way: the body that the worker gets, what was edited in it, and what it is routed by."""

    body: bytes
    edits: RequestEdits
    keyed: Keyed
    prompt: Prompt
    """Without keys where `keyed` has none."""


class Forwarder:
    """Serves the paths that go to workers. Both methods answer in every case and return the pool's name, "" for none.

    Bounded: the stored responses' owners.
    """

    def __init__(
        self,
        config: GatewayConfig,
        models: ModelTable,
        upstreams: UpstreamPool,
        metrics: RequestMetrics,
        access: Access,
        redis: Client | None = None,
    ) -> None:
        """`redis`: where gateways share the owners of stored responses; None: each knows its own."""
        self._config = config
        self._models = models
        self._upstreams = upstreams
        self._metrics = metrics
        self._access = access
        self._prompts = PromptSource(metrics, budget_seconds=config.prompt_budget_seconds)
        self.decisions = Decisions(config, metrics)
        self.stored = StoredResponses()
        self.shared = None if redis is None else SharedResponses(redis, metrics, self.stored)

    async def forward(self, request: Request, reply: Reply, route: Route, tenant: Tenant) -> str:
        """A request of one of the routes."""
        coding = request.header(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            send_error(reply, 415, "send the body without Content-Encoding", code="unsupported_content_encoding")
            return NO_POOL
        try:
            parsed = parse(request, route)
        except BadRequestError as error:
            send_error(reply, 400, str(error), param=error.param)
            return NO_POOL
        served = self.served(parsed, tenant)
        if isinstance(served, Refusal):
            refuse(reply, served)
            return NO_POOL
        if self.unsalted(request.path, route, served, tenant):
            refuse(reply, unsalted_refusal(request.path))
            return served.pool.name
        within = pinned(request, served.pool.router, tenant)
        if isinstance(within, Refusal):
            refuse(reply, within)
            return served.pool.name
        previous = parsed.fields.get("previous_response_id") if route.stores and parsed.fields is not None else None
        owner = await self._owner(previous) if isinstance(previous, str) else None
        if isinstance(previous, str) and _is_out_of_reach(owner, tenant, served.pool):
            _refuse_stored(reply, "previous_response_id")
            return served.pool.name
        admission = await self._access.admit(tenant, len(request.body) // CHARACTERS_PER_TOKEN)
        if isinstance(admission, Refusal):
            refuse(reply, admission)
            return served.pool.name
        try:
            await self._send(request, reply, route, tenant, parsed, served, owner, within, admission)
        finally:
            admission.release()
        return served.pool.name

    async def forward_stored(self, request: Request, reply: Reply, path: StoredPath, tenant: Tenant) -> str:
        """A request about one stored response: to the worker that has it, by load where that is not known."""
        owner = await self._owner(path.response_id)
        served = self._models.only
        pool = self._models.pool(owner.pool) if owner is not None else None if served is None else served.pool
        if pool is None or _is_out_of_reach(owner, tenant, pool):
            _refuse_stored(reply, "response_id")
            return NO_POOL if pool is None else pool.name
        admission = await self._access.admit(tenant, 0)
        if isinstance(admission, Refusal):
            refuse(reply, admission)
            return pool.name
        with admission:
            edit = ReplyEdits(model=owner.model) if owner is not None and owner.model else None
            if edit is not None:
                ask_identity(request)
            only = None if owner is None else owner.worker
            routed = RoutedRequest(pool.router, None, only=only, headers=admission.headers())
            result = await relay(
                request, request.body, reply, routed, pool.upstreams or self._upstreams, self._config, edit
            )
        if request.method == "DELETE" and result.outcome is Outcome.COMPLETED:
            (self.shared or self.stored).forget(path.response_id)
        return pool.name

    async def _owner(self, response_id: str) -> Owner | None:
        """Who has a stored response; None where nobody knows."""
        owner = self.stored.owner(response_id)
        if owner is None and self.shared is not None:
            owner = await self.shared.find(response_id)
        return owner

    def _learner(self, reply: Reply, parsed: Parsed, served: Served, tenant: Tenant) -> Callable[[str], None] | None:
        """What notes that the worker which replies has the response that it makes; None where it keeps none."""
        fields = parsed.fields or {}
        if fields.get("store") is False:
            return None
        public = parsed.model if served.alias and parsed.model is not None else ""
        # vLLM and SGLang call the response what the request says.
        chosen = fields.get("request_id") is not None

        def learn(response_id: str) -> None:
            owner = Owner(served.pool.name, reply.worker, tenant.name, public)
            if self.shared is None:
                self.stored.learn(response_id, owner)
            else:
                self.shared.learn(response_id, owner, chosen=chosen)

        return learn

    def served(self, parsed: Parsed, tenant: Tenant) -> Served | Refusal:
        """The pool and model of a request."""
        if parsed.model is None:
            served = self._models.only
            if served is None:
                message = "'model' is needed here, since this gateway serves several; GET /v1/models lists them"
                return Refusal(400, message, None, "model")
            name = served.name
        else:
            name = parsed.model
            served = self._models.find(name)
        if not tenant.may_use(name):
            return model_refusal(name)
        if served is None:
            if not tenant.anonymous:
                return model_refusal(name)
            known = ", ".join(self._models.names()) or "none"
            message = f"the model {name[:200]!r} does not exist; models here: {known}"
            return Refusal(404, message, "model_not_found", "model")
        return served

    def unsalted(self, path: str, route: Route, served: Served, tenant: Tenant) -> bool:
        """Whether the engine could not keep this tenant's prompts apart there."""
        return (
            route.salted
            and self._access.needs_salt(tenant)
            and path in engines.unsalted_paths(served.pool.router.engines)
        )

    async def prepare(
        self,
        request: Request,
        route: Route,
        tenant: Tenant,
        parsed: Parsed,
        served: Served,
        priority: int | None = None,
        *,
        counted: bool = True,
    ) -> Prepared:
        """What a request becomes on its way, before it is routed. `priority`: as hinted. `counted`: see
        `PromptSource.key`."""
        router, fields = served.pool.router, parsed.fields
        given = None if fields is None else fields.get("cache_salt")
        salt = self._access.salts.salt(tenant, given if isinstance(given, str) else None) if route.salted else None
        edits = RequestEdits(
            model=served.name if served.alias else None,
            salt=salt if salt != given else None,
            ask_usage=route.counts_usage and fields is not None and lacks_usage(fields),
            priority=priority if route.prioritised else None,
        )
        arguments = request.body, parsed, edits, engines.rules(router.engine())
        if len(request.body) <= INLINE_BYTES:
            body = _edited(*arguments)
        else:
            body = await asyncio.to_thread(_edited, *arguments)
        if route.salted and request.path in engines.unsalted_paths(router.engines):
            salt = ""  # what the engine ignores must not be in the keys either
        keyed = await self._prompts.key(served, route, request.path, body, fields, salt, counted=counted)
        # A prompt without keys still brings work: its length, as far as it is known, is booked.
        prompt = _length(keyed.prompt) if isinstance(keyed.prompt, Unkeyed) else keyed.prompt
        return Prepared(body, edits, keyed, prompt)

    async def _send(
        self,
        request: Request,
        reply: Reply,
        route: Route,
        tenant: Tenant,
        parsed: Parsed,
        served: Served,
        owner: Owner | None,
        within: frozenset[str] | None,
        admission: Admission,
    ) -> None:
        pool, fields, metrics = served.pool, parsed.fields, self._metrics
        name = pool.name
        started_at = pool.router.clock()
        hints = self._hints(request, fields)
        prepared = await self.prepare(request, route, tenant, parsed, served, hints.priority)
        body, edits, keyed, prompt = prepared.body, prepared.edits, prepared.keyed, prepared.prompt
        if reply.closed:
            admission.settle(0)
            return
        edit = None
        if served.alias or edits.ask_usage or route.stores:
            public = parsed.model if served.alias else None
            edit = ReplyEdits(
                model=public,
                drop_usage=edits.ask_usage,
                on_id=self._learner(reply, parsed, served, tenant) if route.stores else None,
            )
            ask_identity(request)
        routed = RoutedRequest(
            pool.router,
            prompt,
            adapter=served.adapter,
            only=None if owner is None else owner.worker,
            within=within,
            session=NO_SESSION if hints.session is None else session_key(tenant.name, hints.session),
            headers=admission.headers(),
            explained=self._config.decision_header and request.header(EXPLAIN_HEADER) == b"1",
        )
        result = await relay(request, body, reply, routed, pool.upstreams or self._upstreams, self._config, edit)
        if routed.decided_at is not None:
            metrics.route_seconds.labels(name).observe(routed.decided_at - started_at)
        if result.first_byte_at is not None:
            metrics.first_byte_seconds.labels(name).observe(result.first_byte_at - request.arrived_at)
        if result.outcome is Outcome.COMPLETED and routed.last is not None and keyed.prompt is prompt:
            metrics.keyed_tokens.labels(name).inc(prompt.tokens)
            metrics.matched_tokens.labels(name).inc(routed.last.terms.matched_tokens)
        usage = self._account(pool, result, admission)
        if usage is not None:
            expected = routed.last.terms.matched_tokens if routed.last is not None and keyed.prompt is prompt else None
            self._prompts.compare(pool, keyed, usage, expected)
        self.decisions.ended(pool.router, request, routed, result, keyed.prompt, usage, hints.session)

    def _hints(self, request: Request, fields: Mapping[str, Any] | None) -> Hints:
        hints = read_hints(request, fields)
        for name in hints.ignored:
            self._metrics.ignored_hints.labels(name).inc()
        return hints

    def _account(self, pool: Pool, result: RelayResult, admission: Admission) -> Usage | None:
        """Count what the reply says it used, and settle it with the tenant's limits; None where it does not say."""
        outcome = result.outcome
        if outcome is not Outcome.COMPLETED:
            # Leaving is not for free, neither before the usage comes nor while a worker computes the first byte.
            left = outcome is Outcome.CLIENT_GONE and result.attempts > 0
            if left or (result.first_byte_at is not None and outcome not in {Outcome.REFUSED, Outcome.SERVER_ERROR}):
                admission.settle_estimate(result.reply_tokens)
            else:
                admission.settle(0)
            return None
        usage = read_usage(result.tail, identity=result.content_encoding in {None, b"identity"})
        if usage is None:
            # Lost by compression, or by what the client had repeated after it: not for free either.
            admission.settle_estimate(result.reply_tokens)
            return None
        admission.settle(usage.prompt_tokens + (usage.completion_tokens or 0))
        if usage.cached_tokens is not None:
            name = pool.name
            self._metrics.prompt_tokens.labels(name).inc(usage.prompt_tokens)
            self._metrics.cached_tokens.labels(name).inc(usage.cached_tokens)
        return usage


def parse(request: Request, route: Route) -> Parsed:
    """Read what routing needs of the body; raises BadRequestError."""
    kind = request.header(b"content-type")
    if route.form and kind is not None and is_form(kind):
        if sum(name == b"content-type" for name, _ in request.headers) > 1:
            raise BadRequestError("a form has exactly one Content-Type")
        form = form_model(kind, request.body)
        if form is None and not route.model_optional:
            raise BadRequestError("the form must have the field 'model', the name of a model", param="model")
        return Parsed(None if form is None else form.name, None, form)
    body = request.body
    if len(body) > CONTAINERS_LIMIT and body.count(b"[") + body.count(b"{") > CONTAINERS_LIMIT:
        raise BadRequestError(f"the body has more than {CONTAINERS_LIMIT} '[' and '{{'; send fewer lists and objects")
    fields = parse_object(body)
    if route.model_optional and fields.get("model") is None:
        return Parsed(None, fields)
    return Parsed(model_name(fields), fields)


def _length(unkeyed: Unkeyed) -> Prompt:
    return Prompt(unkeyed.tokens, []) if unkeyed.tokens else _UNKNOWN


def _edited(body: bytes, parsed: Parsed, edits: RequestEdits, rules: engines.EngineRules) -> bytes:
    if parsed.fields is not None:
        return edits.apply(body, parsed.fields, rules)
    if edits.model is None or parsed.form is None:
        return body
    return splice(body, [(parsed.form.start, parsed.form.end, edits.model.encode())])


def ask_identity(request: Request) -> None:
    """Ask the worker for a reply that can be edited: not compressed."""
    request.headers = [header for header in request.headers if header[0] != b"accept-encoding"]
    request.headers.append((b"accept-encoding", b"identity"))


def refuse(reply: Reply, refusal: Refusal) -> None:
    """Answer with a refusal."""
    send_error(reply, refusal.status, refusal.message, param=refusal.param, code=refusal.code, headers=refusal.headers)


def _is_out_of_reach(owner: Owner | None, tenant: Tenant, pool: Pool) -> bool:
    """Whether a stored response is, or may be, another tenant's (with keys, one that is not known here is nobody's), or
    went with its worker. Another worker may have one of that name, and it would be another's."""
    if owner is None:
        return not tenant.anonymous
    gone = owner.pool != pool.name or pool.router.workers.get(owner.worker) is None
    return gone or owner.tenant != tenant.name


def _refuse_stored(reply: Reply, param: str) -> None:
    message = "there is no such response here; responses are kept by the worker that made them, for as long as it runs"
    send_error(reply, 404, message, param=param, code="response_not_found")
