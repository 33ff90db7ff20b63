"""Errors: one exception for every request that is not served, and the shapes in which clients read it.

OpenAI's clients read `{"error": {"message", "type", "param", "code"}}`, Anthropic's
`{"type": "error", "error": {"type", "message"}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.http.message import Header

JSON: Final = (b"content-type", b"application/json")

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES: Final = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


class RequestError(Exception):
    """A request that is not served. `message` is for people and names the remedy, `code` is for programs, `param`
    names the request's field at fault, `headers` go with the reply."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers


STOPPED: Final = RequestError(503, "the gateway was stopped before it could answer; send it again", "gateway_stopped")


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How the clients of one API read errors."""

    body: Callable[[RequestError], bytes]
    """The JSON object, as a whole reply or as the data of an event."""
    event_name: bytes
    """The name of the event that ends a stream with an error; empty where there is none."""


def error_type(status: int) -> str:
    """The `type` that goes with an HTTP status of 400 or above."""
    return _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")


def openai_body(error: RequestError) -> bytes:
    """The error as OpenAI's clients read it."""
    fields = {
        "message": _text(error),
        "type": error_type(error.status),
        "param": error.param,
        "code": error.code,
    }
    return orjson.dumps({"error": fields})


def anthropic_body(error: RequestError) -> bytes:
    """The error as Anthropic's clients read it."""
    status = error.status
    kind = _ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 else error_type(status))
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": _text(error)}})


def _text(error: RequestError) -> str:
    # A message may quote the client's text, which may hold lone surrogates; JSON in UTF-8 cannot.
    return error.message.encode("utf-8", "replace").decode()


OPENAI: Final = ErrorShape(openai_body, b"")
ANTHROPIC: Final = ErrorShape(anthropic_body, b"error")
