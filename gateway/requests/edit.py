"""The stage that makes the worker's body of the client's, and says what must be undone in the reply."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.engines.base import Dialect
from gateway.engines.registry import dialect, unsalted_paths
from gateway.http.message import Request
from gateway.http.reply import Reply
from gateway.requests.access import Access
from gateway.requests.inference_request import InferenceRequest
from gateway.requests.json_members import splice
from gateway.requests.reply_edits import ReplyEdits
from gateway.requests.request_edits import RequestEdits, lacks_usage
from gateway.requests.shared_responses import SharedResponses
from gateway.requests.stored_responses import Owner

INLINE_BYTES: Final = 65_536
"""A body of this size is edited within 10 ms, whatever is in it; a larger one in a thread."""


async def edit_body(request: InferenceRequest, access: Access) -> None:
    """Put the engine's model name, the tenant's salt, the priority and the wish for usage into the body."""
    route, fields = request.route, request.fields
    given = None if fields is None else fields.get("cache_salt")
    salt = access.salts.salt(request.tenant, given if isinstance(given, str) else None) if route.salted else None
    request.salt = salt
    request.drops_usage = route.counts_usage and fields is not None and lacks_usage(fields)
    if fields is not None and (stripped := access.stripped_fields(request.tenant, request.census.engines)):
        request.stripped = stripped.intersection(fields)
    edits = RequestEdits(
        model=request.served.name if request.served.alias else None,
        salt=salt if salt != given else None,
        ask_usage=request.drops_usage,
        priority=request.hints.priority if route.prioritised else None,
        remove=request.stripped,
    )
    engine = dialect(request.census.engine)
    if len(request.body) <= INLINE_BYTES:
        request.body = _edited(request, edits, engine)
    else:
        request.body = await asyncio.to_thread(_edited, request, edits, engine)
    if route.salted and request.http.path in unsalted_paths(request.census.engines):
        request.salt = ""  # what the engine ignores must not be in the keys either


def prepare_reply_edit(request: InferenceRequest, reply: Reply, responses: SharedResponses) -> None:
    """What changes in the reply: the model's public name, usage that only the gateway asked for; and what is read of
    it: the id of a response that the worker stores."""
    stores = request.route.stores
    if request.shown_model is None and not request.drops_usage and not stores:
        return
    stores = stores and (request.fields or {}).get("store") is not False
    learner = _Learner(request, reply, responses) if stores else None
    request.reply_edit = ReplyEdits(
        model=request.shown_model,
        drop_usage=request.drops_usage,
        on_id=None if learner is None else learner.learn,
    )
    _ask_identity(request.http)


class _Learner:
    """Notes which worker has the response that it makes for this request. It does not hold the request, which holds
    it: the two would stay, with both bodies, until the garbage collector looks."""

    def __init__(self, request: InferenceRequest, reply: Reply, responses: SharedResponses) -> None:
        self._pool = request.pool.name
        self._tenant = request.tenant.name
        self._model = request.shown_model or ""
        # vLLM and SGLang call the response what the request says.
        self._chosen = request.fields is not None and request.fields.get("request_id") is not None
        self._reply = reply
        self._responses = responses

    def learn(self, response_id: str) -> None:
        owner = Owner(self._pool, self._reply.upstream, self._tenant, self._model)
        self._responses.learn(response_id, owner, chosen=self._chosen)


def _edited(request: InferenceRequest, edits: RequestEdits, engine: Dialect) -> bytes:
    body, form = request.body, request.form
    if request.fields is not None:
        return edits.apply(body, request.fields, engine, None if request.large is None else request.large.members)
    if edits.model is None or form is None:
        return body
    return splice(body, [(form.start, form.end, edits.model.encode())])


def _ask_identity(http: Request) -> None:
    """Ask the worker for a reply that can be edited: not compressed."""
    http.headers = [header for header in http.headers if header[0] != b"accept-encoding"]
    http.headers.append((b"accept-encoding", b"identity"))
