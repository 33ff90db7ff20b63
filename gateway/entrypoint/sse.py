"""Where the first event of a `text/event-stream` begins; no I/O."""

from __future__ import annotations

import re

from gateway.entrypoint.http import media_type

_DATA_LINE = re.compile(rb"[\r\n]data:")
_CARRY = len(b"\ndata")


class FirstDataLine:
    """Finds the first `data:` line of a stream that comes in pieces cut at any byte.

    Lines end with LF, CRLF or CR. Comments (`: ping`) and other fields (`event: message_start`) are not data.
    """

    __slots__ = ("_carry",)

    def __init__(self) -> None:
        self._carry = b"\n"  # the stream's start is a line's start

    def feed(self, data: bytes) -> bool:
        """True once a line beginning with `data:` has begun in what has been fed."""
        window = self._carry + data
        self._carry = window[-_CARRY:]
        return _DATA_LINE.search(window) is not None


def is_event_stream(content_type: bytes | None) -> bool:
    """Whether a content-type header says `text/event-stream`."""
    return media_type(content_type) == b"text/event-stream"


def error_event(error: bytes, sent: bytes, *, name: bytes = b"") -> bytes:
    """The event that ends a broken stream: `error` is a JSON object, `sent` the last bytes that went before, which
    may have stopped within a line, `name` the event's name where its clients expect one."""
    separator = b"" if sent.endswith((b"\n\n", b"\r\r", b"\r\n\r\n")) or not sent else b"\n\n"
    named = b"event: " + name + b"\n" if name else b""
    return separator + named + b"data: " + error + b"\n\n"
