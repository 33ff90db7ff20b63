"""The `model` field of a multipart/form-data body (RFC 7578), found without decoding the files around it; no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gateway.http.message import media_type
from gateway.prompts.body import BadRequestError
from gateway.requests.json_scan import Steps, whole

PARTS_LIMIT: Final = 128
PART_HEAD_LIMIT_BYTES: Final = 4_096
MODEL_LIMIT_BYTES: Final = 512
SEARCH_BYTES: Final = 262_144
"""Searched in one step."""
_CONTENT_TYPE: Final = re.compile(
    rb'multipart/form-data[ \t]*+((?:;[ \t]*+[a-z-]++=(?:"[^"\\]*+"|[^\s;"\\]++)[ \t]*+)++);?', re.IGNORECASE
)
_ATTRIBUTE: Final = re.compile(rb';[ \t]*+([a-z-]++)=(?:"([^"\\]*+)"|([^\s;"\\]++))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(
    rb'form-data((?:[ \t]*+;[ \t]*+[a-z*]++=(?:"(?:[^"\\]|\\.)*+"|[^\s;"]++))++)[ \t]*+', re.IGNORECASE
)
_PARAMETER: Final = re.compile(rb';[ \t]*+([a-z*]++)=("(?:[^"\\]|\\.)*+"|[^\s;"]++)', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FormModel:
    """The field's value, and where it stands in the body."""

    name: str
    start: int
    end: int


def is_form(content_type: bytes | None) -> bool:
    """Whether a content-type header says multipart/form-data."""
    return media_type(content_type) == b"multipart/form-data"


def form_model(content_type: bytes, body: bytes) -> FormModel | None:
    """`form_steps`, all at once."""
    return whole(form_steps(content_type, body))


def form_steps(content_type: bytes, body: bytes) -> Steps[FormModel | None]:
    """The form's `model`; None where it has none. Raises BadRequestError for what is no form, or names two models."""
    delimiter = b"--" + _boundary(content_type)
    position = 0
    if not body.startswith(delimiter):
        position = (yield from _find(body, b"\r\n" + delimiter, 0)) + 2
        if position < 2:
            raise BadRequestError("the body does not hold the boundary that its Content-Type announces")
    found: FormModel | None = None
    for _ in range(PARTS_LIMIT):
        position += len(delimiter)
        if body.startswith(b"--", position):
            return found
        head_start = body.find(b"\r\n", position, position + 1_024)
        head_end = -1 if head_start < 0 else body.find(b"\r\n\r\n", head_start, head_start + PART_HEAD_LIMIT_BYTES)
        following = yield from _find(body, b"\r\n" + delimiter, position if head_end < 0 else head_end + 2)
        if head_end < 0 or following < 0:
            raise BadRequestError("the multipart body is cut off or malformed")
        if _field(body[head_start + 2 : head_end]) == b"model":
            model = _value(body, head_end + 4, following)
            if found is not None:
                raise BadRequestError("the form has the field 'model' twice; send it once", param="model")
            found = model
        position = following + 2
    raise BadRequestError(f"the form has more than {PARTS_LIMIT} parts")


def _find(body: bytes, sought: bytes, start: int) -> Steps[int]:
    while start < len(body):
        place = body.find(sought, start, start + SEARCH_BYTES + len(sought))
        if place >= 0:
            return place
        start += SEARCH_BYTES
        yield
    return -1


def _boundary(content_type: bytes) -> bytes:
    """Raises BadRequestError for spellings that parsers read differently, as `_field` does."""
    match = _CONTENT_TYPE.fullmatch(content_type.strip())
    attributes: list[tuple[bytes, bytes, bytes]] = [] if match is None else _ATTRIBUTE.findall(match[1])
    boundaries = [quoted or plain for name, quoted, plain in attributes if name.lower() == b"boundary"]
    if len(boundaries) != 1 or not 1 <= len(boundaries[0]) <= 70:
        raise BadRequestError("multipart/form-data needs one boundary, of 1 to 70 characters, in its Content-Type")
    return boundaries[0]


def _field(head: bytes) -> bytes:
    """The name of a part's field. Raises BadRequestError for spellings that parsers read differently: the model that is
    checked here must be the one that the engine serves."""
    if re.search(rb"\r(?!\n)|(?<!\r)\n", head):
        raise BadRequestError("the headers of a form's parts must end with CRLF")
    values = [
        value.strip()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))
        if name.strip().lower() == b"content-disposition"
    ]
    match = _DISPOSITION.fullmatch(values[0]) if len(values) == 1 else None
    if match is None:
        raise BadRequestError('a part of the form lacks its header Content-Disposition: form-data; name="..."')
    parameters: list[tuple[bytes, bytes]] = [
        (key.lower(), value.strip(b'"')) for key, value in _PARAMETER.findall(match[1])
    ]
    names = [value for key, value in parameters if key in {b"name", b"name*"}]
    if len(names) != 1 or (b"name", names[0]) not in parameters or b"\\" in names[0]:
        raise BadRequestError('a part of the form must have one name, as in name="model"')
    return names[0]


def _value(body: bytes, start: int, end: int) -> FormModel:
    if not 0 < end - start <= MODEL_LIMIT_BYTES:
        raise BadRequestError("'model' must be the name of a model", param="model")
    try:
        return FormModel(body[start:end].decode(), start, end)
    except UnicodeDecodeError as error:
        raise BadRequestError("'model' must be the name of a model, in UTF-8", param="model") from error
