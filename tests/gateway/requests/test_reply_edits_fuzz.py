"""Damaged replies of workers: the edits raise nothing, say the same wherever the bytes are cut, and lose no byte that
they have no business with. `tests.damage.INPUTS` says how many; a failure shows the reply."""

from __future__ import annotations

from random import Random

import pytest

from gateway.http.sse import FirstDataLine
from gateway.requests.reply_edits import EventEdit, JsonEdit
from gateway.requests.usage import read_usage
from tests.damage import INPUTS, damaged

PIECES = [
    b"data: ",
    b"data:",
    b"\n\n",
    b"\r\n\r\n",
    b"\r",
    b": ping\n\n",
    b"event: error\n",
    b"[DONE]",
    b"\xff\xfe",
    b'"model":"lora"',
    b'"model":',
    b'"usage":{',
    b'"usage":null',
    b"{",
    b"}",
    b"[" * 50,
    b'"',
    b"\\",
    b"\\u006d",
    b"\x00",
    b'"prompt_tokens":12345678901234567890',
    b'"prompt_tokens":-1',
    b'"prompt_tokens":"7"',
    b"1e999",
    b"NaN",
    b"\xe2\x80",
]
STREAM = (
    b': hello\n\ndata: {"model":"lora","choices":[{"delta":{"content":"\xc3\xa9"}}]}\n\nevent: x\nid: 1\n'
    b'data: {"model" : "lora", "choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}\n\ndata: [DONE]\n\n'
)
WHOLE = (
    b'{"id":"x", "model": "lora", "choices":[{"message":{"content":"a \\"model\\": b"}}],"usage":{"prompt_tokens":5}}'
)


def cut(random: Random, data: bytes) -> list[bytes]:
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(6)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@pytest.mark.timeout(120 + INPUTS // 100)
def test_damaged_replies_pass() -> None:
    random = Random(7)
    for number in range(INPUTS):
        stream = bool(number % 3)
        reply = damaged(random, STREAM if stream else WHOLE, PIECES)
        parts = cut(random, reply)
        try:
            usage = read_usage(reply[-8192:], identity=True)
            assert usage is None or usage.prompt_tokens >= 0
            FirstDataLine().feed(reply)
            if stream:
                drop = bool(number % 2)
                whole, edit = EventEdit(b'"public"', drop_usage=drop), EventEdit(b'"public"', drop_usage=drop)
            else:
                whole, edit = JsonEdit(b'"public"'), JsonEdit(b'"public"')
            at_once = whole.feed(reply) + whole.finish()
            in_parts = b"".join([edit.feed(part) for part in parts]) + edit.finish()
        except Exception as error:
            raise AssertionError(reply) from error
        assert at_once == in_parts, (reply, parts)
        if b"lora" not in reply and b"usage" not in reply and b"model" not in reply:
            assert at_once == reply
