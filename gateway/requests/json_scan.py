"""Where the members of a large JSON object stand, found in short steps and without an object for any of its values.

A parser makes an object of every value and lets nothing else run until it is done: a third of a second and a GB for
32 MiB. Here strings are cut out of a piece by `bytes.split`, and depth is counted in the brackets that are left; both
run in C, some nanoseconds a byte. Whoever drives the steps does other work between them. No I/O.

Of values only brackets, strings and the letters between them are checked. What else is wrong within a value, the
engine's parser finds: no strict parser sees other members than these in what it accepts.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Final, TypeVar

import orjson

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields between steps of at most some milliseconds, and returns a T."""

PIECE_BYTES: Final = 32_768
"""Looked at in one step: at most 3 ms, where it is nothing but brackets or quotes."""
NEAR_BYTES: Final = 2_048
"""Where a list's or object's end is looked for byte by byte."""
NAME_BYTES: Final = 1_024
"""A longer name is none that anybody asks for."""
NUMBER_BYTES: Final = 4_096
"""Of a member's number; Python refuses to read longer ones."""
DEPTH_LIMIT: Final = 1_000
"""As deep as parsers go."""
FEW_VALUES: Final = 500

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_OPENINGS: Final = b"[{"
_SPACES: Final = b" \t\r\n"
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_SCALAR: Final = re.compile(rb"[-+.0-9A-Za-z]++")
_SCALARS: Final = re.compile(rb"[-+.0-9A-Za-z, \t\r\n]++")
_BETWEEN: Final = b"+-.0123456789,: \t\r\neEtruefalsnINity"
"""What stands outside of strings, but for brackets; NaN and Infinity, which some engines take, among it."""
_NO_VALUES: Final = bytes(byte for byte in range(256) if byte not in b"[{,")
_STEP: Final = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_RUN: Final = re.compile(rb'(?:[^\[\]{}"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""Up to the next bracket."""
_REST: Final = re.compile(rb'(?:[^"\\]++|\\.)*+"', re.DOTALL)
"""Of a string, up to its end."""


class NotAnObjectError(ValueError):
    """The bytes are no complete JSON object."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its decoded name, where its key begins, and the range of its value."""

    name: str
    key_start: int
    value_start: int
    value_end: int


class TooManyError(Exception):
    """More values than the bound; the message says which."""


def weight(text: bytes) -> int:
    """What a parser makes of a whole value: 1 for each comma, 4 for each list or object, outside of strings."""
    values = text.translate(None, _NO_VALUES)
    if len(values) > FEW_VALUES:  # else it matters little how many stand in strings
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        values = b"".join(text.split(b'"')[::2]).translate(None, _NO_VALUES)
    return 4 * len(values) - 3 * values.count(b",")


def whole(steps: Steps[T]) -> T:
    """All steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


class Scanner:
    """One body, and how many values have been passed in it."""

    __slots__ = ("_containers_left", "_strings_left", "body")

    def __init__(self, body: bytes, *, containers: int | None = None, strings: int | None = None) -> None:
        """`containers`, `strings`: most lists and objects, and most strings, that lie within members."""
        self.body = body
        self._containers_left = len(body) if containers is None else containers
        self._strings_left = len(body) if strings is None else strings

    def members(self, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Steps[list[Member]]:
        """The members of the object that is all of `body[start:end]`, in order, duplicates kept. Raises
        NotAnObjectError, and TooManyError past `limit`."""
        body = self.body
        stop = len(body) if end is None else end
        found: list[Member] = []
        place = yield from self._opened(start, stop, "{")
        while body[place : place + 1] != b"}" or found:
            key_end = yield from self.string_end(place, stop)
            colon = yield from self.space(key_end, stop)
            if body[colon : colon + 1] != b":":
                raise NotAnObjectError(f"a colon is missing at byte {colon}")
            value_start = yield from self.space(colon + 1, stop)
            value_end = yield from self.value_end(value_start, stop)
            found.append(Member(_name(body[place : min(key_end, place + NAME_BYTES)]), place, value_start, value_end))
            if limit is not None and len(found) > limit:
                raise TooManyError(f"members; an object may have {limit}")
            place = yield from self.space(value_end, stop)
            if body[place : place + 1] != b",":
                break
            place = yield from self.space(place + 1, stop)
        yield from self._closed(place, stop, b"}")
        return found

    def items(self, start: int, end: int, *, limit: int) -> Steps[list[tuple[int, int]]]:
        """The items of the list that is all of `body[start:end]`, by their ranges; of numbers in a row each range has
        many, with the commas between. Raises NotAnObjectError, and TooManyError past `limit` ranges."""
        body = self.body
        found: list[tuple[int, int]] = []
        place = yield from self._opened(start, end, "[")
        while body[place : place + 1] != b"]" or found:
            item_end = 0
            row = _SCALARS.match(body, place, min(end, place + PIECE_BYTES))
            if row is not None:
                item_end = row.end() if body[row.end() : row.end() + 1] == b"]" else body.rfind(b",", place, row.end())
            if item_end <= place:
                item_end = yield from self.value_end(place, end)
            found.append((place, item_end))
            if len(found) > limit:
                raise TooManyError(f"items; a list may have {limit}")
            place = yield from self.space(item_end, end)
            if body[place : place + 1] != b",":
                break
            place = yield from self.space(place + 1, end)
            yield
        yield from self._closed(place, end, b"]")
        return found

    def space(self, place: int, end: int) -> Steps[int]:
        """Where what is no space begins."""
        body = self.body
        while place < end and body[place] in _SPACES:
            match = _SPACE.match(body, place, min(end, place + PIECE_BYTES))
            place = place if match is None else match.end()
            yield
        return place

    def value_end(self, start: int, end: int) -> Steps[int]:
        """The end of the value that begins here. Raises NotAnObjectError."""
        first = self.body[start : min(end, start + 1)]
        if first == b'"':
            return (yield from self.string_end(start, end))
        if first and first in _OPENINGS:
            return (yield from self.container_end(start, end))
        scalar = _SCALAR.match(self.body, start, min(end, start + NUMBER_BYTES))
        if scalar is None or scalar.end() == start + NUMBER_BYTES:
            raise NotAnObjectError(f"no value at byte {start}")
        return scalar.end()

    def string_end(self, start: int, end: int) -> Steps[int]:
        """The end of the string that begins here. Raises NotAnObjectError."""
        body = self.body
        if body[start : min(end, start + 1)] != b'"':
            raise NotAnObjectError(f"no string at byte {start}")
        place = start + 1
        quote = body.find(b'"', place, end)
        if quote >= 0 and body[quote - 1] != _BACKSLASH:
            return quote + 1
        while place < end:
            piece, following = _piece(body, place, end)
            # As long as before, so that places stay what they are.
            quote = piece.replace(b"\\\\", b"..").replace(b'\\"', b"..").find(b'"')
            if quote >= 0:
                return place + quote + 1
            place = following
            yield
        raise NotAnObjectError("a string has no end")

    def container_end(self, start: int, end: int) -> Steps[int]:
        """The end of the list or object that begins here. Raises NotAnObjectError and TooManyError."""
        body = self.body
        place, depth, in_string = start, 0, False
        near = start + NEAR_BYTES  # most are short
        while place < end:
            piece, following = _piece(body, place, min(end, place + NEAR_BYTES) if place < near else end)
            brackets, quotes = _outline(piece, in_string=in_string)
            openings = brackets.count(b"[") + brackets.count(b"{")
            ends = depth + openings >= DEPTH_LIMIT or depth <= len(brackets) - openings
            if ends and brackets:
                depths = list(_depths(brackets, depth))
                if max(depths) > DEPTH_LIMIT:
                    raise NotAnObjectError(f"lists and objects are nested more than {DEPTH_LIMIT} deep")
                ends = min(depths) <= 0
            if ends and brackets:
                if len(piece) <= NEAR_BYTES:
                    return self._near_end(place, depth, min(end, following), in_string=in_string)
                near = following
                continue
            self._count(openings, quotes)
            depth += 2 * openings - len(brackets)
            in_string ^= quotes % 2 == 1
            place = following
            yield
        raise NotAnObjectError("a list or object has no end")

    def _near_end(self, place: int, depth: int, end: int, *, in_string: bool) -> int:
        """As `container_end`, where it is known to end before `end`."""
        body, began = self.body, place
        while True:
            match = (_REST if in_string else _RUN).match(body, place, end)
            if match is None or (not in_string and match.end() >= end):
                raise NotAnObjectError("a list or object has no end")
            place = match.end()
            if in_string:
                in_string = False
                continue
            bracket = body[place]
            place += 1
            if bracket in _OPENINGS:
                depth += 1
                self._count(1, 0)
            elif bracket == _QUOTE:
                raise NotAnObjectError("a string has no end")
            else:
                depth -= 1
                if depth == 0:
                    self._count(0, body.count(b'"', began, place))
                    return place

    def _count(self, openings: int, quotes: int) -> None:
        self._containers_left -= openings
        self._strings_left -= quotes // 2
        if self._containers_left < 0:
            raise TooManyError("'[' and '{'; send fewer lists and objects")
        if self._strings_left < 0:
            raise TooManyError("strings; send fewer")

    def _opened(self, start: int, end: int, bracket: str) -> Steps[int]:
        place = yield from self.space(start, end)
        if self.body[place : min(end, place + 1)] != bracket.encode():
            raise NotAnObjectError(f"no {bracket} at byte {place}")
        return (yield from self.space(place + 1, end))

    def _closed(self, place: int, end: int, bracket: bytes) -> Steps[None]:
        if self.body[place : min(end, place + 1)] != bracket:
            raise NotAnObjectError(f"neither a comma nor {bracket.decode()} at byte {place}")
        place = yield from self.space(place + 1, end)
        if place != end:
            raise NotAnObjectError(f"something follows the end at byte {place}")


def _piece(body: bytes, start: int, end: int) -> tuple[bytes, int]:
    """At most PIECE_BYTES from here, no escape cut in two, and where the next piece begins."""
    stop = min(end, start + PIECE_BYTES)
    piece = body[start:stop]
    if piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
        return piece[:-1], stop + 1
    return piece, stop


def _outline(piece: bytes, *, in_string: bool) -> tuple[bytes, int]:
    """The brackets outside of strings, and how many quotes there are. Raises NotAnObjectError for what no JSON has
    outside of strings."""
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = piece.split(b'"')
    outside = parts[1::2] if in_string else parts[::2]
    brackets = (outside[0] if len(outside) == 1 else b"".join(outside)).translate(None, _BETWEEN)
    if brackets.translate(None, b"[]{}"):
        raise NotAnObjectError("outside of strings stands what no JSON has")
    return brackets, len(parts) - 1


def _depths(brackets: bytes, depth: int) -> Iterator[int]:
    """The depth after each bracket."""
    return map(sub, accumulate(brackets.translate(_STEP)), range(1 - depth, len(brackets) + 1 - depth))


def _name(key: bytes) -> str:
    """ "" for one that is too long, or no string."""
    try:
        name = orjson.loads(key)
    except orjson.JSONDecodeError:
        return ""
    return name if isinstance(name, str) else ""
