"""A file's way from a worker: what is kept, what is refused, before anything is written."""

from __future__ import annotations

import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.server.file_upload import CHUNK_BYTES, FileUpload, RefusedFileError

DATA = bytes(range(256)) * 700


def upload(data: bytes = DATA, size: int | None = None) -> FileUpload:
    return FileUpload(hashlib.sha256(data).hexdigest(), len(data) if size is None else size)


@given(st.binary(min_size=1, max_size=2000), st.integers(1, 500))
def test_any_file_in_pieces_of_any_size_is_kept_as_it_is(data: bytes, step: int) -> None:
    file = upload(data)
    for offset in range(0, len(data), step):
        compressed = file.add(offset, data[offset : offset + step])
        assert (compressed is None) == (offset + step < len(data))
    assert compressed is not None
    assert zlib.decompress(compressed) == data


def test_contents_that_are_not_what_the_digest_says_are_refused() -> None:
    file = upload()
    file.add(0, DATA[:CHUNK_BYTES])
    with pytest.raises(RefusedFileError, match="SHA-256") as refused:
        file.add(CHUNK_BYTES, DATA[CHUNK_BYTES:-1] + b"?")
    assert refused.value.outcome == "mismatch"


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (1, b"x", "file.offset 1: 0 bytes have come"),
        (0, b"", "has 0 bytes"),
        (0, bytes(CHUNK_BYTES + 1), f"send 1 to {CHUNK_BYTES}"),
        (0, DATA[:11], "beyond the 10 bytes"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(offset: int, data: bytes, message: str) -> None:
    with pytest.raises(RefusedFileError, match=message) as refused:
        upload(size=10).add(offset, data)
    assert refused.value.outcome == "refused"
