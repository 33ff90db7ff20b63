"""Usage is read where it makes sense, and skipped where it does not."""

from __future__ import annotations

import pytest

from gateway.usage import Usage, read_usage


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b'{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}', Usage(10, 4)),
        (b'{"usage": {"prompt_tokens": 10, "total_tokens": 12}}', Usage(10, None)),
        (b'data: {"usage":null}\n\ndata: {"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n', Usage(7, None)),
        (b'{"usage":"oops"}', None),
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
