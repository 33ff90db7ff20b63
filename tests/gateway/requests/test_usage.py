"""Usage is read where it makes sense, and skipped where it does not."""

from __future__ import annotations

import pytest

from gateway.requests.usage import Usage, read_usage


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b'{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}', Usage(10, 4)),
        (b'{"usage": {"prompt_tokens": 10, "total_tokens": 12}}', Usage(10, None)),
        (b'data: {"usage":null}\n\ndata: {"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n', Usage(7, None, 1)),
        (b'{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":3},"output_tokens":4}}', Usage(9, 3, 4)),
        (
            b'{"usage":{"input_tokens":9,"output_tokens":4,"cache_creation_input_tokens":5,"cache_read_input_tokens":20}}',
            Usage(34, 20, 4),
        ),
        (b'{"usage":{"input_tokens":9,"cache_creation_input_tokens":null,"output_tokens":1}}', Usage(9, None, 1)),
        (b'{"usage":{"output_tokens":1}}', None),
        (b'{"usage":"oops"}', None),
        (b'{"usage":{"prompt_tokens":10,"completion_tokens":1},"user":"usage"}', Usage(10, None, 1)),
        (b'{"usage" : {"prompt_tokens":10},"metadata":{"usage":"\\"usage\\":{"}}', Usage(10, None)),
        (b'{"usage":{"prompt_tokens":"1024"}}', None),
        (b'{"usage":{"prompt_tokens":1.5}}', None),
        (b'{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":"x"}}}', Usage(10, None)),
        (b'{"usage":{"prompt_tokens":99999999999999999999}}', None),
        (b'prompt_tokens":3}', None),
        (b"", None),
    ],
)
def test_tails(tail: bytes, expected: Usage | None) -> None:
    assert read_usage(tail, identity=True) == expected
    assert read_usage(tail, identity=False) is None
