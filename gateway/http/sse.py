"""Where the first event of a `text/event-stream` that tells of a prompt computed begins; no I/O."""

from __future__ import annotations

from typing import Final

from gateway.http.message import media_type

ANNOUNCEMENTS: Final = frozenset({b"response.created", b"response.queued", b"response.in_progress"})
"""Events of the Responses API that engines send before they have looked at the prompt."""
_BEGINNING: Final = 64
"""Bytes of a line that tell what it is."""


class FirstDataLine:
    """Finds the first `data:` line of a stream that comes in pieces cut at any byte.

    Lines end with LF, CRLF or CR. Comments (`: ping`) and other fields (`event: message_start`) are not data, and
    neither is the line that follows an `event:` of ANNOUNCEMENTS.
    """

    __slots__ = ("_announced", "_line")

    def __init__(self) -> None:
        self._line = b""  # the beginning of the line that has not ended
        self._announced = False

    def feed(self, data: bytes) -> bool:
        """True once such a line has begun in what has been fed."""
        *ended, line = (self._line + data).replace(b"\r", b"\n").split(b"\n")
        for each in ended:
            if each.startswith(b"data:"):
                if not self._announced:
                    return True
                self._announced = False
            elif each.startswith(b"event:"):
                self._announced = each[len(b"event:") :].strip() in ANNOUNCEMENTS
        self._line = line[:_BEGINNING]
        return line.startswith(b"data:") and not self._announced


def is_event_stream(content_type: bytes | None) -> bool:
    """Whether a content-type header says `text/event-stream`."""
    return media_type(content_type) == b"text/event-stream"


def error_event(error: bytes, sent: bytes, *, name: bytes = b"") -> bytes:
    """The event that ends a broken stream: `error` is a JSON object, `sent` the last bytes that went before, which
    may have stopped within a line, `name` the event's name where its clients expect one."""
    separator = b"" if sent.endswith((b"\n\n", b"\r\r", b"\r\n\r\n")) or not sent else b"\n\n"
    named = b"event: " + name + b"\n" if name else b""
    return separator + named + b"data: " + error + b"\n\n"
