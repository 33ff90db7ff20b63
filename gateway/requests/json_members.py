"""The top-level members of a JSON object as byte ranges, and edits spliced between them; no I/O.

Parsing and dumping again would change numbers, spacing, escapes and the order of keys. Here every byte that an edit
does not name stays as it came.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import orjson

# Possessive, so that a string without an end costs one pass; the lone quote is what is left of it.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]|"', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_OPEN = ord("{")
_END = re.compile(rb"[ \t\r\n]*}")
_SCALAR = re.compile(rb"[^\s,}\]]+")


class NotAnObjectError(ValueError):
    """The bytes are no complete JSON object."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its decoded name, where its key begins, and the range of its value."""

    name: str
    key_start: int
    value_start: int
    value_end: int


def members(body: bytes, *, partial: bool = False) -> list[Member]:
    """The members of the object in `body`, in order, duplicates kept.

    `body` is valid JSON, as a parser has found it; for other input the result means nothing, but it ends, within one
    pass. With `partial` the body may stop anywhere, and the members are those that are complete. Raises
    NotAnObjectError.
    """
    found: list[Member] = []
    depth = 0
    key: tuple[str, int, int] | None = None
    position = 0
    while (token := _TOKEN.search(body, position)) is not None:
        position = token.end()
        first = body[token.start()]
        if token[0] == b'"' or (depth == 0 and first != _OPEN):
            break
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
            if depth == 0:
                return found
            if depth == 1 and key is not None:
                found.append(Member(key[0], key[1], key[2], position))
                key = None
        elif depth == 1:
            colon = _COLON.match(body, position)
            if colon is None:
                continue
            key = (_name(token[0]), token.start(), colon.end())
            position = colon.end()
            value = _scalar_or_string(body, position)
            if value is not None:
                found.append(Member(*key, value.end()))
                position, key = value.end(), None
    if partial and depth > 0:
        return found
    raise NotAnObjectError("not a complete JSON object")


def _scalar_or_string(body: bytes, position: int) -> re.Match[bytes] | None:
    """The value that begins here; None where it is an object, an array, or cut off."""
    if body[position : position + 1] in {b"{", b"[", b""}:
        return None
    if body[position] == ord('"'):
        text = _TOKEN.match(body, position)
        return text if text is not None and text[0] != b'"' else None
    value = _SCALAR.match(body, position)
    return value if value is not None and value.end() < len(body) else None


def _name(token: bytes) -> str:
    try:
        name = orjson.loads(token)
    except orjson.JSONDecodeError:
        return ""
    return name if isinstance(name, str) else ""


def value_of_only(body: bytes, name: str) -> tuple[int, int] | None:
    """The range of the string after the only place where `"name"` stands, spelled plainly; None where there are more.

    Much cheaper than `members`. In valid JSON that is known to have the member at its top level, and no escape that
    could spell the name's letters (`\\u00`), that place is its key: within a string its quotes would be escaped.
    """
    quoted = b'"%b"' % name.encode()
    place = body.find(quoted)
    if place < 0 or body.find(quoted, place + 1) >= 0:
        return None
    colon = _COLON.match(body, place + len(quoted))
    value = None if colon is None else _TOKEN.match(body, colon.end())
    if colon is None or value is None or len(value[0]) < 2:
        return None
    return value.span()


def last(found: Collection[Member], name: str) -> Member | None:
    """The member of this name that counts: engines parse as Python does, where the last of duplicates wins."""
    result = None
    for member in found:
        if member.name == name:
            result = member
    return result


def edit_object(
    body: bytes, replace: Mapping[str, bytes], remove: Collection[str] = (), *, add: Mapping[str, bytes] | None = None
) -> bytes:
    """`body` with values replaced (in all duplicates of a name), members removed, and others added in front.

    All values are JSON. `replace` leaves alone what is not there. Raises NotAnObjectError.
    """
    if not (replace or remove):
        return add_members(body, add or {})
    found = members(body)
    kept = [member for member in found if member.name not in remove]
    splices = [
        (member.value_start, member.value_end, replace[member.name]) for member in kept if member.name in replace
    ]
    trailing = kept[-1].value_end if kept else None
    for position, member in enumerate(found):
        if member.name not in remove:
            continue
        if trailing is None or member.key_start < trailing:
            end = found[position + 1].key_start if position + 1 < len(found) else member.value_end
            splices.append((member.key_start, end, b""))
    if kept and trailing is not None and found[-1].value_end > trailing:
        splices.append((trailing, found[-1].value_end, b""))
    return add_members(splice(body, splices), add or {})


def add_members(body: bytes, add: Mapping[str, bytes]) -> bytes:
    """`body` with members added in front; their values are JSON. Raises NotAnObjectError."""
    if not add:
        return body
    opening = body.find(b"{") + 1
    if opening == 0:
        raise NotAnObjectError("not a JSON object")
    text = b",".join([b"%b:%b" % (orjson.dumps(name), value) for name, value in add.items()])
    comma = b"" if _END.match(body, opening) else b","
    return b"%b%b%b%b" % (body[:opening], text, comma, body[opening:])


def splice(body: bytes, edits: Collection[tuple[int, int, bytes]]) -> bytes:
    """`body` with each range [start, end) replaced by the bytes with it; the ranges do not overlap."""
    pieces: list[bytes] = []
    position = 0
    for start, end, text in sorted(edits):
        pieces += (body[position:start], text)
        position = end
    pieces.append(body[position:])
    return b"".join(pieces)
