"""Where a form's model stands, against forms that a client library writes, and those that nobody should."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.body import BadRequestError
from gateway.requests.multipart import form_model, is_form

KIND = b"multipart/form-data; boundary=xyz"


def part(disposition: bytes, value: bytes) -> bytes:
    return b"--xyz\r\nContent-Disposition: " + disposition + b"\r\n\r\n" + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xyz--\r\n"


MODEL = part(b'form-data; name="model"', b"whisper")
FILE = part(b'form-data; name="file"; filename="model.wav"', b"\0\r\n--xy\r\n\xff" * 3)


@given(st.lists(st.binary(max_size=60), max_size=3), st.integers(0, 3), st.text("abc-/@: é", min_size=1, max_size=20))
def test_the_field_is_found_wherever_it_stands(files: list[bytes], place: int, model: str) -> None:
    async def written() -> tuple[bytes, bytes]:
        writer = aiohttp.MultipartWriter("form-data")
        for number in range(len(files) + 1):
            if number == min(place, len(files)):
                writer.append(model).set_content_disposition("form-data", name="model")
            if number < len(files):
                field = writer.append(files[number], {"Content-Type": "audio/wav"})
                field.set_content_disposition("form-data", name="file", filename="model; name=model.wav")
        return writer.headers["Content-Type"].encode(), await writer.as_bytes()

    kind, body = asyncio.run(written())
    assert is_form(kind)
    found = form_model(kind, body)
    assert found is not None
    assert found.name == model
    assert body[found.start : found.end] == model.encode()


def test_quoted_boundaries_and_forms_without_a_model() -> None:
    assert form_model(b'multipart/form-data; charset=utf-8; boundary="xyz"', form(FILE, MODEL)).name == "whisper"
    assert form_model(KIND, form(FILE)) is None
    assert form_model(KIND, b"preamble\r\n" + form(MODEL)).name == "whisper"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--xyz",
        MODEL,
        form(MODEL, MODEL),
        form(MODEL, part(b'form-data; name="model"', b"other")),
        form(part(b'form-data; name="model"', b"")),
        form(part(b'form-data; name="model"', b"m" * 600)),
        form(part(b'form-data; name="model"', b"\xff")),
        form(part(b"form-data; name*=utf-8''model", b"m")),
        form(part(b'form-data; name="file"; name="model"', b"m")),
        form(part(rb'form-data; name="mod\el"', b"m")),
        form(part(b'form-data; name = "model"', b"m")),
        form(part(b"form-data", b"m")),
        form(part(b'form-data; name="a"\r\nContent-Disposition: form-data; name="model"', b"m")),
        form(part(b"form-data;" + b";" * 3000, b"m")),
        form(*[FILE] * 200),
        b"--xyz\r\n" + b"X: y\r\n" * 2000 + b"\r\n--xyz--",
    ],
)
def test_what_parsers_could_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        form_model(KIND, body)


TWO = (
    b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\nallowed\r\n--xyz--\r\n'
    b'--abc\r\nContent-Disposition: form-data; name="model"\r\n\r\nforbidden\r\n--abc--\r\n'
)


@pytest.mark.parametrize(
    "kind",
    [
        b"multipart/form-data; boundary=xyz; boundary=abc",
        b"multipart/form-data; boundary=abc; Boundary=xyz",
        b'multipart/form-data; x="; boundary=xyz"',
        b"multipart/form-data; boundary=xyz; boundary*=utf-8''abc",
        b"multipart/form-data; boundary*0=x; boundary=xyz",
        b'multipart/form-data; boundary="x\\yz"',
        b'multipart/form-data; boundary="xyz"abc',
        b"multipart/form-data; boundary=xyz, multipart/form-data; boundary=abc",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary=""',
        b"multipart/form-data; boundary=" + b"x" * 71,
        b"multipart/form-data boundary=xyz",
    ],
)
def test_a_boundary_that_parsers_could_read_in_two_ways_is_refused(kind: bytes) -> None:
    with pytest.raises(BadRequestError, match="boundary"):
        form_model(kind, TWO)


def test_a_quoted_value_is_no_boundary() -> None:
    found = form_model(b'multipart/form-data; x="; boundary=xyz"; boundary=abc', TWO)
    assert found is not None
    assert found.name == "forbidden"


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_other_line_ends_in_a_parts_head_are_refused(end: bytes) -> None:
    head = b'form-data; name="file"\r\nX: y' + end + b'Content-Disposition: form-data; name="model"'
    with pytest.raises(BadRequestError, match="CRLF"):
        form_model(KIND, form(part(head, b"forbidden"), MODEL))


def test_no_boundary_is_refused() -> None:
    with pytest.raises(BadRequestError, match="boundary"):
        form_model(b"multipart/form-data", form(MODEL))


@given(st.binary(max_size=200) | st.lists(st.sampled_from([MODEL, FILE, b"--xyz", b"\r\n", b"--", b"x"])).map(b"".join))
def test_any_bytes_give_a_model_nothing_or_a_refusal(body: bytes) -> None:
    try:
        found = form_model(KIND, body)
    except BadRequestError:
        return
    assert found is None or body[found.start : found.end].decode() == found.name
