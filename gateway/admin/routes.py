"""The admin port's paths about decisions: `POST /explain` and `GET /decisions`, of one process and of several."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import orjson
from aiohttp import web

from gateway.admin.explain import Explainer
from gateway.http.errors import RequestError, openai_body
from gateway.http.message import Request, first_values
from gateway.requests.decisions import Decisions

DEFAULT_PATH: Final = "/v1/chat/completions"
DEFAULT_LIMIT: Final = 50
EXPLAIN_SECONDS: Final = 10.0
"""Longest wait for an explanation; one is made at a time, since it may cost as much as a hundred requests."""


def add_routes(app: web.Application, explainer: Explainer, decisions: Decisions) -> None:
    """Serve both paths of one process."""
    busy = asyncio.Lock()

    async def explain(request: web.Request) -> web.Response:
        path, tenant = request.query.get("path", DEFAULT_PATH), request.query.get("tenant")
        if (refused := refused_coding(request)) is not None:
            return refused
        asked = client_request(path, request.headers, await request.read())
        try:
            async with asyncio.timeout(EXPLAIN_SECONDS), busy:
                explanation = await explainer.explain(asked, tenant)
        except RequestError as error:
            return _refused(error)
        except TimeoutError:
            return refusal(503, "other explanations are being made; ask again")
        return _json(orjson.dumps(explanation))

    async def latest(request: web.Request) -> web.Response:
        try:
            limit = read_limit(request.query)
        except ValueError as error:
            return refusal(400, str(error), param="limit")
        return _json(orjson.dumps({"decisions": decisions.latest(limit, request.query.get("pool"))}))

    app.router.add_post("/explain", explain)
    app.router.add_get("/decisions", latest)


def client_request(path: str, headers: Mapping[str, str], body: bytes) -> Request:
    """The request that a client would send, of one to the admin port: its body and its headers, but for the admin
    token."""
    pairs = [
        (name.lower().encode("latin-1", "replace"), value.encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
        if name.lower() != "authorization"
    ]
    return Request("POST", path.encode(), path, "", pairs, body, "1.1", True, "", "explain", 0.0, first_values(pairs))


def refused_coding(request: web.Request) -> web.Response | None:
    """The answer to a compressed body, as a client gets it; None for others."""
    if request.headers.get("content-encoding", "identity").lower() == "identity":
        return None
    return refusal(415, "send the body without Content-Encoding", code="unsupported_content_encoding")


def read_limit(query: Mapping[str, str]) -> int:
    """How many decisions are asked for. Raises ValueError."""
    text = query.get("limit", str(DEFAULT_LIMIT))
    digits = text.lstrip("0")[:9] if text.isascii() and text.isdigit() else ""
    if not digits:
        raise ValueError(f"limit: {text[:50]!r} is refused; give a whole number of at least 1")
    return int(digits)


def refusal(status: int, message: str, *, param: str | None = None, code: str | None = None) -> web.Response:
    """An error in the public port's shape."""
    return _refused(RequestError(status, message, code, param))


def _refused(error: RequestError) -> web.Response:
    return _json(openai_body(error), status=error.status)


def _json(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
