"""The checks that do not rely on the parser's strictness."""

from __future__ import annotations

import pytest

from gateway.http.errors import RequestError
from gateway.http.framing import CHUNKED, body_length, usual_length
from gateway.http.message import Header

HOST = (b"host", b"h")


@pytest.mark.parametrize(
    ("version", "headers", "length"),
    [
        ("1.1", [HOST], 0),
        ("1.0", [], 0),
        ("1.1", [HOST, (b"content-length", b"12")], 12),
        ("1.1", [(b"transfer-encoding", b"Chunked"), HOST], CHUNKED),
    ],
)
def test_lengths(version: str, headers: list[Header], length: int) -> None:
    assert body_length(version, headers) == length


@pytest.mark.parametrize(
    ("version", "headers", "status"),
    [
        ("1.1", [], 400),
        ("1.1", [HOST, HOST], 400),
        ("1.0", [HOST, HOST], 400),
        ("2.0", [HOST], 505),
        ("0.9", [], 505),
        ("1.1", [HOST, (b"content-length", b"1"), (b"content-length", b"1")], 400),
        ("1.1", [HOST, (b"content-length", b"1, 1")], 400),
        ("1.1", [HOST, (b"content-length", b"+1")], 400),
        ("1.1", [HOST, (b"content-length", b"")], 400),
        ("1.1", [HOST, (b"content-length", b"1"), (b"transfer-encoding", b"chunked")], 400),
        ("1.1", [HOST, (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")], 501),
        ("1.1", [HOST, (b"transfer-encoding", b"gzip, chunked")], 501),
        ("1.1", [HOST, (b"transfer-encoding", b"identity")], 501),
        ("1.0", [HOST, (b"transfer-encoding", b"chunked")], 400),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(version: str, headers: list[Header], status: int) -> None:
    with pytest.raises(RequestError) as caught:
        body_length(version, headers)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("version", "headers", "length"),
    [
        ("1.1", [HOST], 0),
        ("1.1", [HOST, (b"content-length", b"12")], 12),
        ("1.0", [HOST], None),
        ("1.1", [], None),
        ("1.1", [HOST, (b"content-length", b"+1")], None),
        ("1.1", [HOST, (b"content-length", b"")], None),
        ("1.1", [HOST, (b"transfer-encoding", b"chunked")], None),
        ("1.1", [HOST, (b"content-length", b"1"), (b"transfer-encoding", b"chunked")], None),
    ],
)
def test_only_the_usual_framing_is_decided_without_the_strict_checks(
    version: str, headers: list[Header], length: int | None
) -> None:
    assert usual_length(version, dict(headers)) == length
