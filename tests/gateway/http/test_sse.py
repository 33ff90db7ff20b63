"""The first `data:` line is found wherever the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.sse import FirstDataLine, error_event, is_event_stream


def naive(stream: bytes) -> bool:
    """Whether a line begins with `data:` that no announcement stands before, by splitting the stream into lines."""
    announced = False
    for line in stream.replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"event:"):
            announced = line.removeprefix(b"event:").strip() in {b"response.created", b"response.in_progress"}
        elif line.startswith(b"data:"):
            if not announced:
                return True
            announced = False
    return False


PIECES = st.sampled_from(
    [
        *(b"data:", b"data", b":", b" ", b"\n", b"\r\n", b"\r", b": ping", b"event: x", b"da", "é".encode()),
        *(b"event: response.created\n", b"event:response.in_progress\r\n", b"event: response.create", b"\ndata: {}\n"),
        b"x" * 70,
    ]
)


@given(st.lists(PIECES, max_size=12).map(b"".join), st.data())
def test_agrees_with_splitting_into_lines_after_every_byte(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    scanner = FirstDataLine()
    found = False
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found = found or scanner.feed(stream[start:end])
        assert found == naive(stream[:end])


def test_what_engines_announce_before_the_prompt_is_computed_is_no_first_event() -> None:
    scanner = FirstDataLine()
    announced = b'event: response.created\ndata: {"response": {"instructions": "' + b"x" * 5000 + b'"}}\n\n'
    assert not scanner.feed(announced)
    assert not scanner.feed(b'event: response.in_progress\r\ndata: {"response": {}}\r\n\r\n: ping\n\n')
    assert scanner.feed(b"event: response.output_item.added\ndata: {}\n\n")


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"text/event-streams", False),
        (b"application/json", False),
        (None, False),
    ],
)
def test_is_event_stream(content_type: bytes | None, expected: bool) -> None:
    assert is_event_stream(content_type) is expected


@pytest.mark.parametrize(
    ("sent", "separator"),
    [(b"data: 1\n\n", b""), (b"data: 1\r\n\r\n", b""), (b"data: {", b"\n\n"), (b"data: 1\n", b"\n\n"), (b"", b"")],
)
def test_an_error_event_begins_on_its_own(sent: bytes, separator: bytes) -> None:
    assert error_event(b"{}", sent) == separator + b"data: {}\n\n"
