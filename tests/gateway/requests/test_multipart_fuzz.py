"""Damaged forms: a model that stands in the body, none, or a refusal, never another error.
`tests.damage.INPUTS` says how many; a failure shows the form."""

from __future__ import annotations

from random import Random

import pytest

from gateway.prompts.body import BadRequestError
from gateway.requests.multipart import form_model
from tests.damage import INPUTS, damaged

PIECES = [
    b"--b",
    b"--b--",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"Content-Disposition: form-data; ",
    b'name="model"',
    b"name=model",
    b"; name*=utf-8''model",
    b'filename="',
    b'"',
    b"\\",
    b"\x00",
    b"\xff",
    b"a" * 5000,
    b"--",
    b":",
    b";",
    b" ",
]
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\nRIFF\x00\x01\r\n"
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
)
TYPE = b"multipart/form-data; boundary=b"


@pytest.mark.timeout(120 + INPUTS // 100)
def test_damaged_forms_are_read_or_refused() -> None:
    random = Random(8)
    found = refused = 0
    for number in range(INPUTS):
        body = damaged(random, FORM, PIECES)
        kind = damaged(random, TYPE, PIECES) if number % 5 == 0 else TYPE
        try:
            form = form_model(kind, body)
        except BadRequestError:
            refused += 1
        except Exception as error:
            raise AssertionError((kind, body)) from error
        else:
            if form is not None:
                found += 1
                assert body[form.start : form.end].decode() == form.name, (kind, body)
    assert found > INPUTS // 20
    assert refused > INPUTS // 20
