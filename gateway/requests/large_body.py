"""Large bodies: read in short steps beside everything else, with a bound on the objects that are made of one.

orjson makes an object of every value, in one go and with the interpreter's lock, so that neither a thread nor patience
helps: 32 MiB of it stop every stream for a third of a second, and become up to 1.5 GB. So the members of a large body
are found by `Scanner`, and each value is parsed by itself, a long list item by item, a long text piece by piece.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, TypeVar

import orjson

from gateway.http.errors import RequestError
from gateway.http.message import Request
from gateway.prompts.body import PIECES_LIMIT, BadRequestError
from gateway.prompts.keyer import SIZE_LIMIT
from gateway.requests.json_scan import Member, NotAnObjectError, Scanner, Steps, TooManyError, weight

T = TypeVar("T")

INLINE_BYTES: Final = 65_536
"""A body of this size is parsed at once: at most 8 ms, where it is nothing but lists."""
SHORT_BYTES: Final = 1_048_576
"""So is one of this size that has no more than INLINE_VALUES."""
INLINE_VALUES: Final = 10_000
SLICE_SECONDS: Final = 0.001
"""How long steps may go on before others have their turn."""

CONTAINERS_LIMIT: Final = 250_000
"""Most lists and objects within a large body, and most strings of one twice that: passing them takes 0.4 us each."""
STRINGS_LIMIT: Final = 500_000
MEMBERS_LIMIT: Final = 1_000
"""Most members of an object of which each is read by itself; engines know about a hundred."""
WEIGHT_LIMIT: Final = 500_000
"""What a large body's values may weigh that are made objects: 1 for each that follows a comma, 4 for a list or object,
so that they are at most 30 MB."""
READING_AT_ONCE: Final = 2
"""Large bodies of which there are objects, from the first until the keys are made."""
TURN_SECONDS: Final = 60.0
"""Longest wait to be one of them."""
WIDE_CHARACTERS: Final = 2_000_000
"""Most of one text that is not ASCII: with up to 4 bytes each they are put together at once."""
SEARCH_BYTES: Final = 262_144

_VALUES: Final = bytes(byte for byte in range(256) if byte not in b"[{,")
_MEDIA: Final = (b'_url"', b'"input_audio"', b'"base64"')
"""Where none of these stands in a body it has no media: it is text."""
_ESCAPE_BYTES: Final = 6
_HALF: Final = re.compile(rb"\\u[dD][c-fC-F]")
"""The second half of a character."""


@dataclass(slots=True)
class LargeBody:
    """The fields of a body that is not short. `members`: where they stand. `whole`: none was left out, so that its
    prompt is known. `text_bytes`: its size without media that were left out."""

    fields: Mapping[str, Any]
    members: list[Member]
    whole: bool
    text_bytes: int


class Turns:
    """Whose large body is being read: READING_AT_ONCE at a time, in the order of their coming."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(READING_AT_ONCE)
        self._taken: set[int] = set()

    async def take(self, request: Request) -> None:
        """Raises RequestError where the wait is too long."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._free.acquire()
        except TimeoutError as error:
            message = "too many large requests wait to be read; try again later"
            raise RequestError(503, message, "overloaded", headers=((b"retry-after", b"1"),)) from error
        self._taken.add(id(request))

    def give(self, request: Request) -> None:
        """No object of its body is needed any more. May be called again, and for one that never took a turn."""
        if self._taken and id(request) in self._taken:
            self._taken.discard(id(request))
            self._free.release()


async def in_slices(steps: Steps[T]) -> T:
    """Run the steps, some at a time, between what else the loop has to do."""
    began = perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
        if perf_counter() - began > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = perf_counter()


def is_short(body: bytes) -> bool:
    """Whether it can be parsed at once."""
    size = len(body)
    return size <= INLINE_BYTES or (size <= SHORT_BYTES and len(body.translate(None, _VALUES)) <= INLINE_VALUES)


def read_steps(body: bytes) -> Steps[LargeBody]:
    """Read a JSON body that is not short; raises BadRequestError. The values that are left out are too long or too many
    to be a prompt that is keyed."""
    scanner = Scanner(body, containers=CONTAINERS_LIMIT, strings=STRINGS_LIMIT)
    try:
        members = yield from scanner.members(limit=MEMBERS_LIMIT)
    except NotAnObjectError as error:
        raise BadRequestError(f"the request body is not a valid JSON object: {error}") from error
    except TooManyError as error:
        raise BadRequestError(f"the body has too many {error}") from error
    texts = len(body) <= SIZE_LIMIT or (yield from _has_media(body))
    reader = _Reader(body, texts=texts)
    fields: dict[str, Any] = {}
    whole = True
    for member in members:
        try:
            fields[member.name] = yield from reader.read(member.value_start, member.value_end)
        except (orjson.JSONDecodeError, NotAnObjectError) as error:
            raise BadRequestError(f"the request body is not valid JSON: {member.name[:100]!r}: {error}") from error
        except TooManyError:
            # Of duplicates the last counts, and no earlier one may stand for it.
            fields.pop(member.name, None)
            whole = False
    return LargeBody(fields, members, whole, len(body) - reader.media_bytes)


def _has_media(body: bytes) -> Steps[bool]:
    for start in range(0, len(body), SEARCH_BYTES):
        end = start + SEARCH_BYTES + max(map(len, _MEDIA))
        if any(body.find(mark, start, end) >= 0 for mark in _MEDIA):
            return True
        yield
    return False


class _Reader:
    """Makes objects of values, within the bounds."""

    def __init__(self, body: bytes, *, texts: bool) -> None:
        """`texts`: read long ones too."""
        self._body = body
        self._texts = texts
        self.media_bytes = 0
        """Left out: no text is that long where there are media."""
        self._weight_left = WEIGHT_LIMIT
        self._scanner = Scanner(body)

    def read(self, start: int, end: int) -> Steps[Any]:
        """Raises TooManyError; JSONDecodeError and NotAnObjectError for what is no JSON."""
        if end - start <= INLINE_BYTES or self._body[start] not in b'"[{':
            yield
            return self._parsed(self._body[start:end])
        if not self._texts:
            raise TooManyError("bytes")
        first = self._body[start]
        if first == ord("["):
            return (yield from self._list(start, end))
        if first == ord("{"):
            return (yield from self._object(start, end))
        return (yield from self._text(start + 1, end - 1))

    def _parsed(self, text: bytes) -> Any:
        self._weight_left -= weight(text)
        if self._weight_left < 0:
            raise TooManyError("values")
        return orjson.loads(text)

    def _list(self, start: int, end: int) -> Steps[list[Any]]:
        read: list[Any] = []
        # Twice as many ranges: what is not numbers has one an item, and more than PIECES_LIMIT are not keyed.
        ranges = yield from self._scanner.items(start, end, limit=2 * PIECES_LIMIT)
        ranges.reverse()
        while ranges:
            first, last = ranges.pop()
            while ranges and ranges[-1][1] - first <= INLINE_BYTES:
                last = ranges.pop()[1]
            if last - first <= INLINE_BYTES:
                read += self._parsed(b"[%b]" % self._body[first:last])
                yield
            else:
                read.append((yield from self.read(first, last)))
        return read

    def _object(self, start: int, end: int) -> Steps[dict[str, Any]]:
        read: dict[str, Any] = {}
        for member in (yield from self._scanner.members(start, end, limit=MEMBERS_LIMIT)):
            read[member.name] = yield from self.read(member.value_start, member.value_end)
        return read

    def _text(self, start: int, end: int) -> Steps[str]:
        """A string's, between its quotes."""
        if end - start > SIZE_LIMIT:
            self.media_bytes += end - start
            raise TooManyError("characters")
        pieces: list[str] = []
        while start < end:
            cut = _cut(self._body, start, end)
            if cut <= start:
                raise NotAnObjectError(f"a malformed string at byte {start}")
            pieces.append(orjson.loads(b'"%b"' % self._body[start:cut]))
            start = cut
            yield
        if sum(map(len, pieces)) > WIDE_CHARACTERS and not all(map(str.isascii, pieces)):
            raise TooManyError("characters")
        return "".join(pieces)


def _cut(body: bytes, start: int, end: int) -> int:
    """Where a string may be cut in two, INLINE_BYTES from `start` at most but for the second half of a character."""
    cut = start + INLINE_BYTES
    if cut >= end:
        return end
    while cut > start and body[cut] & 0xC0 == 0x80:
        cut -= 1
    piece = body[start:cut].replace(b"\\\\", b"..")  # a backslash that is left begins an escape
    escape = piece.rfind(b"\\", max(0, len(piece) - _ESCAPE_BYTES))
    if escape >= 0 and escape + (_ESCAPE_BYTES if body[start + escape + 1] == ord("u") else 2) > len(piece):
        cut = start + escape
    return cut + _ESCAPE_BYTES if _HALF.match(body, cut, end) else cut
