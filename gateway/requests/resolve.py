"""The first stages of a request: whose it is, which model and pool it is for, and whether it may be served there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.engines.registry import unsalted_paths
from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.prompts.body import BadRequestError, model_name, parse_object
from gateway.requests.access import Access
from gateway.requests.head_check import check_coding
from gateway.requests.hints import read_hints
from gateway.requests.inference_request import InferenceRequest
from gateway.requests.large_body import (
    INLINE_BYTES,
    LargeBody,
    Turns,
    in_slices,
    is_short,
    read_steps,
)
from gateway.requests.models import ModelTable, Served
from gateway.requests.multipart import FormModel, form_steps, is_form
from gateway.requests.paths import STORED, Route, StoredPath
from gateway.requests.pins import pinned
from gateway.requests.shared_responses import SharedResponses
from gateway.tenants.tenant import Tenant, model_refusal, unsalted_refusal


class Resolver:
    """Makes requests of what clients send. Raises RequestError for what is not served."""

    def __init__(self, models: ModelTable, access: Access, responses: SharedResponses) -> None:
        self._models = models
        self._access = access
        self._responses = responses
        self.turns = Turns()

    async def resolve(self, http: Request, route: Route, tenant: Tenant) -> InferenceRequest:
        """A request of one of the routes. Of a large body a turn may be taken, which the caller gives back in any
        case (`turns`)."""
        check_coding(http.first_values)
        form: FormModel | None = None
        fields: Mapping[str, Any] | None = None
        large: LargeBody | None = None
        body = http.body
        model: str | None
        kind = http.header(b"content-type")
        if route.form and kind is not None and is_form(kind):
            form = await self._form(http, kind, route)
            model = None if form is None else form.name
        else:
            if len(body) <= INLINE_BYTES or is_short(body):
                fields = parse_object(body)
            else:
                await self.turns.take(http)
                large = await in_slices(read_steps(body))
                fields = large.fields
            model = None if route.model_optional and fields.get("model") is None else model_name(fields)
        request = InferenceRequest(http, route, tenant, self._served(model, tenant), fields)
        request.form = form
        request.large = large
        request.hints = read_hints(http, fields)
        if request.served.alias:
            request.shown_model = model
        if route.stores and fields is not None:
            previous = fields.get("previous_response_id")
            if isinstance(previous, str):
                request.response_id = previous
        return request

    async def resolve_stored(self, http: Request, path: StoredPath, tenant: Tenant) -> InferenceRequest:
        """A request about one stored response, which the worker that made it has."""
        owner = await self._responses.owner(path.response_id)
        served = self._models.only if owner is None else self._models.served(owner.pool)
        if served is None:
            raise _no_response("response_id")
        request = InferenceRequest(http, STORED, tenant, served)
        request.response_id = path.response_id
        request.owner = owner
        request.shown_model = None if owner is None else owner.model or None
        return request

    async def permit(self, request: InferenceRequest) -> None:
        """Refuse what this tenant may not ask of this pool; note the workers that the request may go to."""
        route, tenant, pool = request.route, request.tenant, request.pool
        if route is not STORED:
            if (
                route.salted
                and self._access.needs_salt(tenant)
                and request.http.path in unsalted_paths(request.census.engines)
            ):
                raise unsalted_refusal(request.http.path)
            request.pinned = pinned(request.http, pool.router, tenant)
            if request.response_id is not None:
                request.owner = await self._responses.owner(request.response_id)
        if request.response_id is not None and _is_out_of_reach(request):
            raise _no_response("response_id" if route is STORED else "previous_response_id")

    async def _form(self, http: Request, content_type: bytes, route: Route) -> FormModel | None:
        if sum(name == b"content-type" for name, _ in http.headers) > 1:
            raise BadRequestError("a form has exactly one Content-Type")
        form = await in_slices(form_steps(content_type, http.body))
        if form is None and not route.model_optional:
            raise BadRequestError("the form must have the field 'model', the name of a model", param="model")
        return form

    def _served(self, model: str | None, tenant: Tenant) -> Served:
        """The pool and the engine's model that a public name stands for."""
        if model is None:
            served = self._models.only
            if served is None:
                message = "'model' is needed here, since this gateway serves several; GET /v1/models lists them"
                raise RequestError(400, message, None, "model")
            name = served.name
        else:
            name = model
            served = self._models.find(name)
        if not tenant.may_use(name) or (served is None and not tenant.anonymous):
            raise model_refusal(name)
        if served is None:
            known = ", ".join(self._models.names()) or "none"
            message = f"the model {name[:200]!r} does not exist; models here: {known}"
            raise RequestError(404, message, "model_not_found", "model")
        return served


def _is_out_of_reach(request: InferenceRequest) -> bool:
    """Whether the stored response is, or may be, another tenant's, or went with its worker.

    With keys, a response that is not known here is nobody's. Another worker may have one of that name, and it would be
    another response.
    """
    owner, tenant, pool = request.owner, request.tenant, request.pool
    if owner is None:
        return not tenant.anonymous
    gone = owner.pool != pool.name or request.census.workers.get(owner.worker) is None
    return gone or owner.tenant != tenant.name


def _no_response(param: str) -> RequestError:
    message = "there is no such response here; responses are kept by the worker that made them, for as long as it runs"
    return RequestError(404, message, "response_not_found", param)
