"""Replies on their way: the public name, no usage that only the gateway asked for, the rest as it came."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.upstream_connection import ReplyHead
from gateway.requests import reply_edits
from gateway.requests.reply_edits import ReplyEdits, restore_model
from gateway.requests.stored_responses import Owner, StoredResponses

USAGE = b'{"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}'


def head(kind: bytes, *headers: tuple[bytes, bytes]) -> ReplyHead:
    fields = [(b"content-type", kind), *headers]
    return ReplyHead(200, fields, None, dict(fields))


def passed(edits: ReplyEdits, pieces: Iterator[bytes] | list[bytes], kind: bytes = b"text/event-stream") -> bytes:
    edits.begin(head(kind))
    return b"".join([*(edits.feed(piece) for piece in pieces), edits.finish()])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A stream, what is left of it with the public name, and what is left of it without the usage event."""
    whole, renamed, without = b"", b"", b""
    events = draw(st.integers(0, 5))
    for number in range(events):
        newline = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
        # The last event may lack its blank line.
        end = newline * 2 if number < events - 1 or draw(st.booleans()) else b""
        space = draw(st.sampled_from([b"", b" "]))
        text = draw(st.sampled_from(["", "é😀", '"model":"base"', '"usage"', "data: \n\n"]))
        comment = draw(st.sampled_from([b"", b": ping" + newline]))
        kind = draw(st.sampled_from(["chunk", "done", "usage", "event", "plain", "other usage"]))
        chunk = {"id": "c", "model": "%s", "choices": [{"delta": {"content": text, "model": "base"}}]}
        event = {"type": "x", "response": {"id": "r", "model": "%s", "output": [text]}}
        usage = {"choices": [], "model": "%s", "usage": {"prompt_tokens": 1, "x": text}}
        both = {"choices": [{"model": "base"}], "model": "%s", "usage": {"prompt_tokens": 1}}
        data = {"chunk": chunk, "event": event, "usage": usage, "other usage": both}.get(kind)
        if data is None:
            line = b"data:" + space + (b"[DONE]" if kind == "done" else text.replace("\n", "").encode())
            body = comment + line + end
            whole, renamed, without = whole + body, renamed + body, without + body
            continue
        name = b"event: chunk" + newline if kind == "event" else b""
        spelled = orjson.dumps(data)
        base = name + comment + b"data:" + space + spelled.replace(b'"%s"', b'"base"') + end
        public = name + comment + b"data:" + space + spelled.replace(b'"%s"', b'"public"') + end
        whole, renamed = whole + base, renamed + public
        without += base if kind != "usage" else comment + b"\n" if comment else b""
    return whole, renamed, without


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(streams(), CUTS)
def test_the_public_name_is_restored_however_the_stream_is_cut(
    stream: tuple[bytes, bytes, bytes], cuts: list[int]
) -> None:
    whole, renamed, _ = stream
    assert passed(ReplyEdits(model="public"), split(whole, cuts)) == renamed
    assert passed(ReplyEdits(model="public"), [bytes([byte]) for byte in whole]) == renamed


@given(streams(), CUTS)
def test_only_the_usage_event_is_taken_out(stream: tuple[bytes, bytes, bytes], cuts: list[int]) -> None:
    whole, _, without = stream
    assert passed(ReplyEdits(drop_usage=True), split(whole, cuts)) == without
    assert passed(ReplyEdits(drop_usage=True), [bytes([byte]) for byte in whole]) == without


@given(st.binary(max_size=200) | st.text('data:{}"model\r\n :,', max_size=200).map(str.encode), CUTS)
def test_what_is_no_event_of_ours_passes_as_it_is(stream: bytes, cuts: list[int]) -> None:
    edited = passed(ReplyEdits(model="p", drop_usage=True), split(stream, cuts))
    model = re.search(rb'"model"\s*:\s*"', stream)
    assert edited == stream or model


@given(st.integers(1, 400), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.integers(1, 40))
def test_an_event_that_is_too_long_to_hold_passes_and_the_next_is_edited(size: int, newline: bytes, step: int) -> None:
    limit, reply_edits.EVENT_LIMIT_BYTES = reply_edits.EVENT_LIMIT_BYTES, 64
    try:
        long = b'data: {"model":"base","x":"' + b"y" * size + b'"}' + newline * 2
        short = b'data: {"model":"base"}' + newline * 2
        stream = long + short
        pieces = [stream[start : start + step] for start in range(0, len(stream), step)]
        edited = passed(ReplyEdits(model="public"), pieces)
        assert edited.endswith(short.replace(b"base", b"public"))
        assert edited.replace(b"public", b"base") == stream
        if size > 64 + step:
            assert edited.startswith(long)
    finally:
        reply_edits.EVENT_LIMIT_BYTES = limit


def test_pieces_are_not_held_back() -> None:
    edits = ReplyEdits(drop_usage=True)
    assert edits.begin(head(b"text/event-stream"))
    assert edits.feed(b"data: {}\n\n") == b"data: {}\n\n"
    assert edits.feed(b"data: {}\n\ndata: ") == b"data: {}\n\n"
    assert edits.feed(USAGE + b"\n\ndata: [DONE]\n\n") == b"data: [DONE]\n\n"


@given(CUTS)
def test_json_replies(cuts: list[int]) -> None:
    body = b'{ "id" : "x", "choices": [{"model":"base","text":"\\"model\\":\\"base\\""}], "model" : "base", "n": 1.0 }'
    edited = passed(ReplyEdits(model='pub"lic'), split(body, cuts), b"application/json; charset=utf-8")
    assert edited == body.replace(b'"model" : "base"', b'"model" : "pub\\"lic"')


def test_a_long_json_reply_is_changed_as_far_as_it_is_held() -> None:
    limit, reply_edits.JSON_LIMIT_BYTES = reply_edits.JSON_LIMIT_BYTES, 64
    try:
        body = b'{"model":"base","data":[' + b"1," * 400 + b"1]}"
        pieces = [body[start : start + 10] for start in range(0, len(body), 10)]
        assert passed(ReplyEdits(model="p"), pieces, b"application/json") == body.replace(b"base", b"p")
    finally:
        reply_edits.JSON_LIMIT_BYTES = limit


@pytest.mark.parametrize("body", [b"", b"[]", b"oops", b'{"model":7}', b'{"model":null}', b'{"error":{"model":"x"}}'])
def test_replies_without_a_model_pass(body: bytes) -> None:
    assert passed(ReplyEdits(model="p"), [body], b"application/json") == body
    assert restore_model(body, b'"p"') == body


@pytest.mark.parametrize(
    ("kind", "headers"),
    [(b"application/json", [(b"content-encoding", b"gzip")]), (b"audio/wav", []), (b"text/plain", [])],
)
def test_what_cannot_be_edited_keeps_its_length(kind: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    edits = ReplyEdits(model="p", drop_usage=True)
    assert not edits.begin(head(kind, *headers))
    assert edits.feed(b'{"model":"base"}') == b'{"model":"base"}'
    assert edits.finish() == b""


@given(CUTS)
def test_the_id_of_a_response_is_read_and_its_bytes_pass(cuts: list[int]) -> None:
    stream = b'event: response.created\ndata: {"response":{"id":"resp_a-1","previous_response_id":"resp_b"}}\n\n'
    told: list[str] = []
    edits = ReplyEdits(on_id=told.append)
    assert passed(edits, split(stream, cuts)) == stream
    assert told == ["resp_a-1"]


def test_an_id_far_behind_is_not_looked_for() -> None:
    told: list[str] = []
    passed(ReplyEdits(on_id=told.append), [b" " * 5000, b'"id":"resp_x"'])
    assert told == []


def test_the_least_recently_used_owner_goes_first() -> None:
    stored = StoredResponses(2)
    for name in ("a", "b"):
        stored.learn(name, Owner("p", name, "", ""))
    assert stored.owner("a").worker == "a"
    stored.learn("c", Owner("p", "c", "", ""))
    assert (stored.owner("b"), len(stored)) == (None, 2)
    stored.forget("a")
    assert stored.owner("a") is None
