"""The scanner of large bodies against what a parser makes of them, and its cost."""

from __future__ import annotations

import json
import os
import time
from random import Random

import orjson
import pytest
from hypothesis import given

from gateway.engines.registry import dialect
from gateway.http.errors import RequestError
from gateway.requests import json_scan, large_body
from gateway.requests.json_scan import NotAnObjectError, Scanner, whole
from gateway.requests.large_body import read_steps
from gateway.requests.request_edits import RequestEdits
from tests.gateway.requests.test_json_members import objects

INPUTS = int(os.environ.get("WARMROUTE_FUZZ_INPUTS", "10000"))


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> object:
    """Pieces of some bytes, so that every kind of cut is met."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "PIECE_BYTES", 7)
        patch.setattr(json_scan, "NEAR_BYTES", 3)
        patch.setattr(large_body, "INLINE_BYTES", 9)
        yield patch


@given(objects())
def test_members_are_what_a_parser_finds(spelled: tuple[bytes, list[tuple[str, object]]]) -> None:
    body, pairs = spelled
    found = whole(Scanner(body).members())
    assert [(m.name, json.loads(body[m.value_start : m.value_end])) for m in found] == pairs


@given(objects())
def test_fields_are_what_a_parser_reads(spelled: tuple[bytes, list[tuple[str, object]]]) -> None:
    body, _ = spelled
    try:
        expected = orjson.loads(body)
    except orjson.JSONDecodeError:
        return  # half a character
    read = whole(read_steps(body))
    assert read.whole
    assert read.fields == expected


def test_damaged_bodies_are_refused_or_read_as_a_parser_reads_them() -> None:
    seed = Random().randrange(1 << 32)
    random = Random(seed)
    whole_body = rb'{"model":"m\u00e9\\","a":[[],{"b":[1,"x\"y",{}]},null],"s":"\ud83d\ude00 \\\\ a text","n":-1.5e3}'
    for number in range(INPUTS):
        body = bytearray(whole_body)
        for _ in range(random.choice((1, 1, 2, 4))):
            place = random.randrange(len(body))
            match random.randrange(3):
                case 0:
                    del body[place]
                case 1:
                    body.insert(place, random.choice(b'"\\[]{},:0 \nu'))
                case _:
                    body[place] = random.randrange(256)
        try:
            expected = orjson.loads(bytes(body))
        except orjson.JSONDecodeError:
            expected = None
        try:
            read = whole(read_steps(bytes(body)))
        except RequestError:
            assert not isinstance(expected, dict), (seed, number, bytes(body))
        else:
            assert expected is None or read.fields == expected, (seed, number, bytes(body))


@pytest.mark.parametrize(
    "unit", [b'"",', b"[],", b'{"a":1},', b'"\\\\",', b'"\\"",', b"1,", b"[[[[0]]]],"], ids=lambda unit: unit.decode()
)
def test_time_grows_with_the_size(unit: bytes, small_pieces: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "PIECE_BYTES", 32_768)
        patch.setattr(json_scan, "NEAR_BYTES", 2_048)
        edits = RequestEdits(model="n", salt="s", ask_usage=True)
        fields = {"model": "m", "stream": True, "stream_options": {"a": 1}}

        def seconds(size: int) -> float:
            body = b'{"model":"m","stream_options":{"a":1},"p":[' + unit * (size // len(unit)) + b'0],"stream":true}'
            times = []
            for _ in range(3):
                began = time.thread_time()
                edits.apply(body, fields, dialect("vllm"))
                times.append(time.thread_time() - began)
            return min(times)

        assert seconds(2_000_000) < 8 * seconds(500_000) + 0.005


def test_depth_has_a_bound() -> None:
    for depth, fits in ((900, True), (2000, False)):
        body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        if fits:
            assert len(whole(Scanner(body).members())) == 1
        else:
            with pytest.raises(NotAnObjectError, match="deep"):
                whole(Scanner(body).members())
