"""Where a request ends: a corpus, and a comparison with h11, which shares no code with our parser."""

from __future__ import annotations

import os
from random import Random

import h11
import pytest

from gateway.http.errors import RequestError
from gateway.http.request_parser import RequestParser
from tests.gateway.http.raw_requests import SMUGGLING, VALID, damaged

INPUTS = int(os.environ.get("WARMROUTE_FUZZ_INPUTS", "10000"))
ALLOWED_5XX = {501, 505}
"""RFC 9110's answers to a transfer coding and to a version that a server does not know."""
Parsed = list[tuple[str, bytes, bytes]]
"""Method, target and body of each request."""


def ours(data: bytes) -> tuple[Parsed, RequestError | None]:
    items = RequestParser(65_536, 1 << 20).feed(data, 0.0)
    error = items.pop() if items and isinstance(items[-1], RequestError) else None
    requests = [item for item in items if not isinstance(item, RequestError)]
    assert len(requests) == len(items)
    return [(item.method, item.target, item.body) for item in requests], error


def h11s(data: bytes) -> tuple[Parsed, bool]:
    """What h11 reads, and whether it refuses something."""
    connection = h11.Connection(h11.SERVER)
    parsed: Parsed = []
    head: h11.Request | None = None
    body = b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                parsed.append((head.method.decode(), head.target, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            else:
                return parsed, False
    except h11.LocalProtocolError:  # the connection ends after this request
        return parsed, False
    except h11.RemoteProtocolError:
        return parsed, True


@pytest.mark.parametrize("name", VALID)
def test_proper_requests_are_read_as_h11_reads_them(name: str) -> None:
    requests, error = ours(VALID[name])
    assert error is None
    assert requests
    assert requests == h11s(VALID[name])[0]


@pytest.mark.parametrize("name", SMUGGLING)
def test_what_could_hide_a_request_is_refused(name: str) -> None:
    requests, error = ours(SMUGGLING[name])
    assert requests == []
    assert error is not None
    assert 400 <= error.status < 500 or error.status in ALLOWED_5XX


def test_damaged_requests_are_read_as_h11_reads_them_or_refused() -> None:
    random = Random(11)
    both = 0
    for _ in range(INPUTS):
        data = damaged(random)
        requests, error = ours(data)
        assert error is None or 400 <= error.status < 500 or error.status in ALLOWED_5XX
        theirs, _ = h11s(data)
        common = min(len(requests), len(theirs))
        # Either may be the stricter; what both take, they must take alike.
        assert [same_form(item) for item in requests[:common]] == [same_form(item) for item in theirs[:common]], data
        both += common
    assert both > INPUTS / 10


def same_form(item: tuple[str, bytes, bytes]) -> tuple[str, bytes, bytes]:
    """h11 leaves absolute targets as they are."""
    method, target, body = item
    _, scheme, rest = target.partition(b"://")
    return method, b"/" + rest.partition(b"/")[2] if scheme and not target.startswith(b"/") else target, body
