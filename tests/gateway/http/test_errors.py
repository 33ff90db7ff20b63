from __future__ import annotations

import json

import pytest

from gateway.http.errors import RequestError, error_type, openai_body
from gateway.requests.paths import ERROR_SHAPES
from tests.gateway.http.support import client, run, serving
from tests.gateway.http.test_connection import echo


def test_the_shape_is_openais() -> None:
    body = openai_body(RequestError(400, "`n` must be 1", "invalid_value", "n"))
    assert json.loads(body) == {
        "error": {"message": "`n` must be 1", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    }


def test_any_text_can_be_quoted() -> None:
    assert json.loads(openai_body(RequestError(400, "\ud800 \x00 é")))["error"]["message"] == "? \x00 é"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (502, "server_error"),
        (503, "service_unavailable_error"),
        (504, "timeout_error"),
    ],
)
def test_types(status: int, expected: str) -> None:
    assert error_type(status) == expected


@pytest.mark.parametrize(
    ("path", "anthropic"), [("/v1/messages?beta=true", True), ("/v1/messages/count_tokens", True), ("/v1/x", False)]
)
@pytest.mark.parametrize(
    ("rest", "status", "kind"),
    [
        (b"Content-Length: 2000\r\n\r\n", 413, "request_too_large"),
        (b"Transfer-Encoding: chunked\r\n\r\n" + b"800\r\n" + bytes(2048), 413, "request_too_large"),
        (b"X: " + b"x" * 2000 + b"\r\n\r\n", 431, "invalid_request_error"),
        (b"Content-Length: 9\r\n\r\nabc", 408, "timeout_error"),
        (b"Content-Length: 9\r\nContent-Length: 8\r\n\r\n", 400, "invalid_request_error"),
    ],
)
def test_early_refusals_have_the_shape_of_their_path(
    path: str, anthropic: bool, rest: bytes, status: int, kind: str
) -> None:
    async def main() -> None:
        limits = {"header_limit_bytes": 1024, "body_limit_bytes": 1024, "client_read_seconds": 0.2}
        async with serving(echo, error_shapes=ERROR_SHAPES, **limits) as server, client(server.port) as user:
            answer = await user.ask(f"POST {path} HTTP/1.1\r\nHost: h\r\n".encode() + rest)
            error = json.loads(answer.body)
            assert answer.status == status
            if anthropic:
                assert error == {"type": "error", "error": {"type": kind, "message": error["error"]["message"]}}
            else:
                assert set(error["error"]) == {"type", "message", "code", "param"}

    run(main())
