"""Error replies in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`; on Anthropic's paths in theirs:
`{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from gateway.http.message import Header
    from gateway.http.reply import Reply

JSON = (b"content-type", b"application/json")

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


_ANTHROPIC_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


def error_type(status: int) -> str:
    """The `type` that goes with an HTTP status of 400 or above."""
    return _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON body of an error. `param` names the request field at fault, `code` is for programs."""
    error = {
        # A message may quote the client's text, which may hold lone surrogates; JSON in UTF-8 cannot.
        "message": message.encode("utf-8", "replace").decode(),
        "type": error_type(status),
        "param": param,
        "code": code,
    }
    return orjson.dumps({"error": error})


def anthropic_error_body(status: int, message: str) -> bytes:
    """The JSON body of an error as Anthropic's clients read it."""
    kind = _ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 else error_type(status))
    text = message.encode("utf-8", "replace").decode()
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": text}})


def send_error(
    reply: Reply,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: tuple[Header, ...] = (),
) -> None:
    """Send a whole error reply, in the shape that the path's clients read."""
    if reply.anthropic:
        body = anthropic_error_body(status, message)
    else:
        body = error_body(status, message, param=param, code=code)
    reply.send(status, (JSON, *headers), body)
