"""The two edits of replies: the public model name where an alias was used, and the usage event that only the gateway
asked for, taken out. Everything else goes through byte for byte. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import orjson

from gateway.http.message import media_type
from gateway.http.sse import is_event_stream
from gateway.http.upstream_connection import ReplyHead
from gateway.requests.json_members import Member, NotAnObjectError, last, members, splice, value_of_only
from gateway.requests.stored_responses import ResponseId

JSON_LIMIT_BYTES: Final = 4_194_304
"""Most of a JSON reply held back to find its model name; in a longer one it is changed if it stands within that."""
EVENT_LIMIT_BYTES: Final = 1_048_576
"""Most of one event held back; a longer one passes unchanged."""
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE: Final = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|$)")
_WRAPPERS: Final = ("response", "message")
"""Members that hold a whole reply, model and all, in events of Responses and of Messages."""


class ReplyEdits:
    """One request's reply; see `ReplyEdit`. It never raises: what it does not understand passes as it is."""

    def __init__(
        self, *, model: str | None = None, drop_usage: bool = False, on_id: Callable[[str], None] | None = None
    ) -> None:
        """`model`: the public name to restore. `drop_usage`: take out the usage event. `on_id` is told the id of a
        response that was made, before the client is, so that it can be cancelled while it still comes."""
        self._model = None if model is None else orjson.dumps(model)
        self._drop_usage = drop_usage
        self._on_id = on_id
        self._id: ResponseId | None = None
        self._edit: EventEdit | JsonEdit | None = None

    def begin(self, head: ReplyHead) -> bool:
        # Not of an error, which may repeat what the client sent, another's id too.
        self._id = ResponseId() if self._on_id is not None and head.status < 300 else None
        coding = head.header(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            return False
        kind = head.header(b"content-type")
        if is_event_stream(kind):
            if self._model is not None or self._drop_usage:
                self._edit = EventEdit(self._model, drop_usage=self._drop_usage)
        elif self._model is not None and media_type(kind) == b"application/json":
            self._edit = JsonEdit(self._model)
        return self._edit is not None

    def feed(self, data: bytes) -> bytes:
        if self._id is not None and self._on_id is not None:
            self._id.feed(data)
            if self._id.value is not None:
                self._on_id(self._id.value)
                self._id = None
        return data if self._edit is None else self._edit.feed(data)

    def finish(self) -> bytes:
        return b"" if self._edit is None else self._edit.finish()


class JsonEdit:
    """Restores the model name in one JSON object, held back until it is whole."""

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._passing = False

    def feed(self, data: bytes) -> bytes:
        if self._passing:
            return data
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes <= JSON_LIMIT_BYTES:
            return b""
        self._passing = True
        return self._restored()

    def finish(self) -> bytes:
        return b"" if self._passing else self._restored()

    def _restored(self) -> bytes:
        body = b"".join(self._held)
        self._held.clear()
        return restore_model(body, self._model)


class EventEdit:
    """Edits a `text/event-stream` that comes in pieces cut at any byte, event by event."""

    def __init__(self, model: bytes | None, *, drop_usage: bool) -> None:
        self._model = model
        self._drop_usage = drop_usage
        self._held = b""
        self._passing = False  # within an event that is too long to be held
        # How the last event began, up to its model's name, and how that was sent: most events of a stream begin alike.
        self._beginning = self._renamed = b""

    def feed(self, data: bytes) -> bytes:
        untouched = not self._held and self._model is None and not self._passing
        if untouched and data.endswith(b"\n\n") and b'"usage"' not in data:
            return data  # most pieces: whole events that tell no usage
        window = self._held + data
        sent: list[bytes] = []
        position = 0
        # What was held has no blank line but for one that may end in it.
        search = max(0, len(self._held) - 3)
        while (end := _BLANK_LINE.search(window, search)) is not None:
            if end.end() == len(window) and window.endswith(b"\r"):
                break  # its LF may be on its way
            event = window[position : end.end()]
            sent.append(event if self._passing else self._edited(event))
            self._passing = False
            position = search = end.end()
        self._held = window[position:]
        if self._passing:
            # A blank line may be cut in two: keep what could be its first half.
            keep = len(self._held) - len(self._held.rstrip(b"\r\n"))
            sent.append(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        elif len(self._held) > EVENT_LIMIT_BYTES:
            self._passing = True
            return b"".join(sent) + self.feed(b"")
        return b"".join(sent)

    def finish(self) -> bytes:
        rest, self._held = self._held, b""
        return rest if self._passing or not rest else self._edited(rest)

    def _edited(self, event: bytes) -> bytes:
        if self._drop_usage and b'"usage"' in event and b'"choices"' in event and _is_usage(_data(event)):
            return _without_data(event)
        if self._model is None or b'"model"' not in event:
            return event
        known = len(self._beginning)
        if known and event.startswith(self._beginning) and event.find(b'"model"', known) < 0:
            return self._renamed + event[known:]
        edited = _LINE.sub(self._line, event)
        if edited != event and event.startswith(b"data:") and (value := value_of_only(event, "model")) is not None:
            self._beginning = event[: value[1]]
            self._renamed = event[: value[0]] + self._model
        return edited

    def _line(self, line: re.Match[bytes]) -> bytes:
        if self._model is None or not line[1].startswith(b"data:"):
            return line[0]
        return b"data:" + restore_model(line[1][5:], self._model) + line[2]


def restore_model(text: bytes, model: bytes) -> bytes:
    """`text`, a JSON object or the beginning of one, with its model name, and that of a reply within it, replaced."""
    edits: list[tuple[int, int, bytes]] = []
    try:
        found = members(text, partial=True)
        edits += _model_ranges(text, found, 0, model)
        for name in _WRAPPERS:
            inner = last(found, name)
            if inner is not None and text[inner.value_start : inner.value_start + 1] == b"{":
                part = text[inner.value_start : inner.value_end]
                edits += _model_ranges(part, members(part), inner.value_start, model)
    except NotAnObjectError:
        return text
    return splice(text, edits) if edits else text


def _model_ranges(text: bytes, found: list[Member], offset: int, model: bytes) -> list[tuple[int, int, bytes]]:
    return [
        (member.value_start + offset, member.value_end + offset, model)
        for member in found
        if member.name == "model" and text[member.value_start] == ord('"')
    ]


def _data(event: bytes) -> bytes:
    """An event's data: its `data` lines, joined."""
    return b"\n".join(line[1][5:] for line in _LINE.finditer(event) if line[1].startswith(b"data:"))


def _is_usage(data: bytes) -> bool:
    """Whether this is the event that tells the usage and nothing else."""
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(fields, dict) and fields.get("choices") == [] and isinstance(fields.get("usage"), dict)


def _without_data(event: bytes) -> bytes:
    """The comments of an event, which are all that may be left of it: without data it is none."""
    comments = b"".join(line[0] for line in _LINE.finditer(event) if line[1].startswith(b":"))
    return comments + b"\n" if comments else b""
