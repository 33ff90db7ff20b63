"""The top-level members of a JSON object as byte ranges, and edits spliced between them; no I/O.

Parsing and dumping again would change numbers, spacing, escapes and the order of keys. Here every byte that an edit
does not name stays as it came.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

import orjson

from gateway.requests.json_scan import Member, NotAnObjectError, Scanner, whole

__all__ = ["Member", "NotAnObjectError", "add_members", "edit_object", "last", "members", "splice", "value_of_only"]

LARGE_BYTES: Final = 65_536
"""Of this size on, what is not searched is passed over by `Scanner`."""
COPY_BYTES: Final = 1_048_576
"""Copied at once; a join of these goes on without the interpreter's lock."""
# Possessive, so that a string without an end costs one pass; the lone quote is what is left of it.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]|"', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_OPEN = ord("{")
_END = re.compile(rb"[ \t\r\n]*}")
_SCALAR = re.compile(rb"[^\s,}\]]+")


def members(body: bytes, *, partial: bool = False) -> list[Member]:
    """The members of the object in `body`, in order, duplicates kept.

    `body` is valid JSON, as a parser has found it; for other input the result means nothing, but it ends, within one
    pass. With `partial` the body may stop anywhere, and the members are those that are complete. Raises
    NotAnObjectError.
    """
    if len(body) > LARGE_BYTES and not partial:
        return whole(Scanner(body).members())
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
    body: bytes,
    replace: Mapping[str, bytes],
    remove: Collection[str] = (),
    *,
    add: Mapping[str, bytes] | None = None,
    found: list[Member] | None = None,
) -> bytes:
    """`body` with values replaced (in all duplicates of a name), members removed, and others added in front.

    All values are JSON. `replace` leaves alone what is not there. `found`: the body's members, where they are known.
    Raises NotAnObjectError.
    """
    if not (replace or remove):
        return add_members(body, add or {})
    if found is None:
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
    if add:
        splices.append(_added(body, add, alone=not kept))
    return splice(body, splices)


def add_members(body: bytes, add: Mapping[str, bytes]) -> bytes:
    """`body` with members added in front; their values are JSON. Raises NotAnObjectError."""
    return splice(body, [_added(body, add, alone=False)]) if add else body


def _added(body: bytes, add: Mapping[str, bytes], *, alone: bool) -> tuple[int, int, bytes]:
    """`alone`: of the members that the body has none stays."""
    opening = body.find(b"{") + 1
    if opening == 0:
        raise NotAnObjectError("not a JSON object")
    text = b",".join([b"%b:%b" % (orjson.dumps(name), value) for name, value in add.items()])
    return opening, opening, text if alone or _END.match(body, opening) else text + b","


def splice(body: bytes, edits: Collection[tuple[int, int, bytes]]) -> bytes:
    """`body` with each range [start, end) replaced by the bytes with it; the ranges do not overlap."""
    pieces: list[bytes] = []
    position = 0
    for start, end, text in sorted(edits):
        _copy(pieces, body, position, start)
        pieces.append(text)
        position = end
    _copy(pieces, body, position, len(body))
    return b"".join(pieces)


def _copy(pieces: list[bytes], body: bytes, start: int, end: int) -> None:
    while end - start > COPY_BYTES:
        pieces.append(body[start : start + COPY_BYTES])
        start += COPY_BYTES
    pieces.append(body[start:end])
