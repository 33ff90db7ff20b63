from __future__ import annotations

import json

import pytest

from gateway.entrypoint.errors import error_body, error_type


def test_the_shape_is_openais() -> None:
    body = error_body(400, "`n` must be 1", param="n", code="invalid_value")
    assert json.loads(body) == {
        "error": {"message": "`n` must be 1", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    }


def test_any_text_can_be_quoted() -> None:
    assert json.loads(error_body(400, "\ud800 \x00 é"))["error"]["message"] == "? \x00 é"


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
