from __future__ import annotations

from gateway.http.message import end_to_end, first_values, render_headers


def test_hop_by_hop_headers_and_those_that_connection_names_are_dropped() -> None:
    headers = [
        (b"x-named", b"1"),
        (b"connection", b"Keep-Alive, X-Named"),
        (b"connection", b"x-also"),
        (b"x-also", b"2"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"x-kept", b"3"),
        (b"x-kept", b"4"),
        (b"x-replaced", b"5"),
    ]
    assert end_to_end(headers, {b"x-replaced"}) == [(b"x-kept", b"3"), (b"x-kept", b"4")]


def test_first_values_has_the_first_value_of_each_header() -> None:
    headers = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    assert first_values(headers) == {b"a": b"1", b"b": b"2"}


def test_render_headers() -> None:
    assert render_headers([(b"a", b"1"), (b"b", b"")]) == b"a: 1\r\nb: \r\n"
    assert render_headers([]) == b""
