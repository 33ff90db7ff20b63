"""What the public port answers, and the one way of every request that goes to a worker (`App.serve`)."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Final

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.http.reply import Reply
from gateway.http.upstream import UpstreamPool
from gateway.prompts.keyer import CHARACTERS_PER_TOKEN
from gateway.requests.access import OPEN, Access
from gateway.requests.decisions import Decisions
from gateway.requests.edit import edit_body, prepare_reply_edit
from gateway.requests.head_check import check_method, unknown_path
from gateway.requests.inference_request import InferenceRequest
from gateway.requests.key import PromptKeys
from gateway.requests.metrics import RequestMetrics
from gateway.requests.model_list import ModelList
from gateway.requests.models import ModelTable, Pool
from gateway.requests.paths import HEALTH, MODELS, POST, POST_ROUTES, READS, STORED, stored_path
from gateway.requests.relay import relay
from gateway.requests.resolve import Resolver
from gateway.requests.settle import Settlement
from gateway.requests.shared_responses import SharedResponses
from gateway.requests.stored_responses import StoredResponses
from gateway.routing.routed_request import RoutedRequest
from gateway.tenants.tenant import Tenant
from warmroute.config.gateway import GatewayConfig
from warmroute.redis.client import Client

NO_POOL: Final = ""
"""The metric label of requests that no pool served."""
EXPLAIN_HEADER: Final = b"x-warmroute-explain"
"""With the value 1 it asks for the decision in the reply's head."""


class App:
    """The handler of `gateway.http.server.Server`. Bounded: the stored responses' owners, the decisions kept."""

    def __init__(
        self,
        config: GatewayConfig,
        pools: Mapping[str, Pool],
        upstreams: UpstreamPool,
        metrics: RequestMetrics,
        access: Access = OPEN,
        redis: Client | None = None,
    ) -> None:
        """`pools`: public name of the base model -> pool. `redis`: where gateways share the owners of stored responses;
        None: each knows its own."""
        self.models = models = ModelTable(pools)
        self._config = config
        self._upstreams = upstreams
        self._metrics = metrics
        self.access = access
        self.responses = SharedResponses(redis, metrics, StoredResponses())
        self.resolver = Resolver(models, access, self.responses)
        self.keys = PromptKeys(metrics, budget_seconds=config.prompt_budget_seconds)
        self.decisions = Decisions(config, metrics)
        self._settlement = Settlement(metrics, self.keys, self.decisions, self.responses)
        self._model_list = ModelList(models)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What keeps it up to date."""
        return [*self.responses.tasks(), *self.decisions.tasks()]

    async def __call__(self, http: Request, reply: Reply) -> None:
        """Answer a request, in every case, and count it once."""
        request: InferenceRequest | None = None
        try:
            request = await self._resolve(http, reply)
            if request is not None:
                await self.serve(request, reply)
        except RequestError as error:
            if not reply.started:  # else the gateway that stops has answered
                reply.send_error(error)
        except Exception:
            # The connection answers 500 where nothing was sent yet.
            self.count(500 if reply.status is None else reply.status)
            raise
        finally:
            self.resolver.turns.give(http)
        pool = NO_POOL if request is None else request.pool.name
        self._metrics.requests.labels(pool, str(reply.final_status)).inc()

    def count(self, status: int) -> None:
        """Count a request that no pool served."""
        self._metrics.requests.labels(NO_POOL, str(status)).inc()

    async def _resolve(self, http: Request, reply: Reply) -> InferenceRequest | None:
        """The request that goes to a worker; None where the gateway itself has answered. Raises RequestError."""
        path = http.path
        route = POST_ROUTES.get(path)
        if route is not None:
            return await self.resolver.resolve(http, route, self._identify(http, POST, anthropic=route.anthropic))
        if path == HEALTH:
            check_method(http, READS)
            reply.send(200)
            return None
        if path == MODELS or path.startswith(MODELS + "/"):
            self._model_list.answer(path, reply, self._identify(http, READS))
            return None
        stored = stored_path(path)
        if stored is not None:
            return await self.resolver.resolve_stored(http, stored, self._identify(http, stored.methods))
        raise unknown_path(http)

    def _identify(self, http: Request, methods: tuple[str, ...], *, anthropic: bool = False) -> Tenant:
        check_method(http, methods)
        return self.access.identify(http, anthropic=anthropic)

    async def serve(self, request: InferenceRequest, reply: Reply) -> None:
        """The way of a request: permit, admit, edit, key, place and relay, settle. Raises RequestError before it has
        been placed."""
        pool, route = request.pool, request.route
        await self.resolver.permit(request)
        estimate = 0 if route is STORED else len(request.body) // CHARACTERS_PER_TOKEN
        admission = await self.access.admit(request.tenant, estimate)
        try:
            request.started_at = pool.router.clock()
            await self.make_prompt(request)
            if route is not STORED:
                self._settlement.keyed(request)
            if reply.closed:
                admission.settle(0)
                return
            prepare_reply_edit(request, reply, self.responses)
            explained = route is not STORED and request.http.header(EXPLAIN_HEADER) == b"1"
            routed = RoutedRequest(
                pool.router,
                request.prompt,
                request.constraints(),
                headers=admission.headers(),
                explained=explained and self._config.decision_header,
            )
            upstreams = pool.upstreams or self._upstreams
            self.resolver.turns.give(request.http)
            exchange = await relay(request.http, request.take_body(), reply, routed, upstreams, request.reply_edit)
            self._settlement.ended(request, routed, admission, reply, exchange)
        finally:
            admission.release()

    async def make_prompt(self, request: InferenceRequest) -> None:
        """The stages that `/explain` shares: the body as the worker gets it, and the keys of its prompt."""
        if request.route is not STORED:
            await edit_body(request, self.access)
            await self.keys.key(request)
