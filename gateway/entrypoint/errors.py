"""Error replies in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from gateway.entrypoint.http import Header
    from gateway.entrypoint.reply import Reply

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


def send_error(
    reply: Reply,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: tuple[Header, ...] = (),
) -> None:
    """Send a whole error reply."""
    reply.send(status, (JSON, *headers), error_body(status, message, param=param, code=code))
