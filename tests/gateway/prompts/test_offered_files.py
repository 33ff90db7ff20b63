"""What a gateway makes of the files that workers offer, whatever lies in the index."""

from __future__ import annotations

import asyncio
import hashlib
import os
import zlib
from pathlib import Path

import pytest

from gateway.prompts.offered_files import (
    PIECE_BYTES,
    FileSet,
    ModelFile,
    ModelFilesError,
    NotThereYetError,
    fetch,
    most_common,
    unpack,
)
from indexer.layout import WorkerFacts, file_key
from tests.support import redis_client

DATA = os.urandom(3 * PIECE_BYTES)


def file(data: bytes = DATA, name: str = "tokenizer.json") -> ModelFile:
    return ModelFile(name, hashlib.sha256(data).hexdigest(), len(data))


def facts(*files: ModelFile) -> WorkerFacts:
    offered = tuple({"name": one.name, "digest": one.digest, "size": one.size} for one in files)
    return WorkerFacts("a:1", "m", "e", "0", 16, 64, "f", publishes_events=True, files=offered)


def fetched(redis_url: str, value: bytes | None, folder: Path, wanted: ModelFile | None = None) -> bytes:
    wanted = wanted or file()

    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            if value is not None:
                await redis.set(file_key("p", wanted.digest), value)
            unpack(await fetch(redis, "p", FileSet((wanted,))), folder)

    asyncio.run(scenario())
    return (folder / wanted.name).read_bytes()


@pytest.mark.parametrize("data", [DATA, DATA[:PIECE_BYTES], b"x" * 3_000_000, b"{}"])
def test_a_file_arrives_as_it_is(redis_url: str, tmp_path: Path, data: bytes) -> None:
    assert fetched(redis_url, zlib.compress(data), tmp_path, file(data)) == data


def test_files_of_sub_folders_get_theirs(redis_url: str, tmp_path: Path) -> None:
    wanted = file(b"x", "additional_chat_templates/tools.jinja")
    assert fetched(redis_url, zlib.compress(b"x"), tmp_path, wanted) == b"x"


def test_one_that_is_not_there_is_told_apart(redis_url: str, tmp_path: Path) -> None:
    with pytest.raises(NotThereYetError, match=r"tokenizer\.json"):
        fetched(redis_url, None, tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"garbage", "does not unpack: .*"),
        (zlib.compress(DATA)[:-100_000], "has not 786432 bytes"),
        (zlib.compress(DATA[:-1]), "has not 786432 bytes"),
        (zlib.compress(bytes(1 << 28)), "has not 786432 bytes"),
        (zlib.compress(DATA[:-1] + bytes([DATA[-1] ^ 1])), "has another SHA-256"),
    ],
    ids=["garbage", "cut", "short", "bomb", "changed"],
)
def test_contents_that_are_not_the_workers_are_refused(
    redis_url: str, tmp_path: Path, value: bytes, message: str
) -> None:
    with pytest.raises(ModelFilesError, match=rf"tokenizer\.json in the index {message}: delete its key"):
        fetched(redis_url, value, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_workers_without_a_tokenizer_offer_nothing() -> None:
    assert FileSet.of(facts(file(name="config.json"))) is None
    assert FileSet.of(facts()) is None
    many = [
        ModelFile(name, f"{number:064x}", 60 << 20) for number, name in enumerate(("tokenizer.json", "config.json"))
    ]
    assert FileSet.of(facts(*many)) is not None
    assert FileSet.of(facts(*many, ModelFile("chat_template.jinja", "a" * 64, 60 << 20))) is None
    strange = WorkerFacts("a:1", "m", "e", "0", 16, 64, "f", publishes_events=True, files=(7, "x"))  # type: ignore[arg-type]
    assert FileSet.of(strange) is None


def file_set(tokenizer: bytes, template: bytes | None = None) -> FileSet:
    files = [file(tokenizer)] + ([] if template is None else [file(template, "chat_template.jinja")])
    made = FileSet.of(facts(*files))
    assert made is not None
    return made


A, A2, B = file_set(b"a", b"1"), file_set(b"a", b"2"), file_set(b"b", b"1")
BARE_A = file_set(b"a")


@pytest.mark.parametrize(
    ("sets", "current", "expected"),
    [
        ([], None, None),
        ([], A, None),
        ([A], None, A),
        ([A, B, B], None, B),
        ([A, B, B], A, B),
        ([A, B], A, A),
        ([A, B], B, B),
        ([B, A], A, A),
        # The tokenizer of most workers first, then its files.
        ([A, A2, A2, B, B], None, A2),
        ([A, A2, B], A, A),
        ([A, A2, B], A2, A2),
        # Of a release that sends no templates.
        ([BARE_A, BARE_A, A], None, A),
        ([BARE_A, BARE_A, B], None, BARE_A),
    ],
)
def test_most_workers_decide_and_ties_change_nothing(
    sets: list[FileSet], current: FileSet | None, expected: FileSet | None
) -> None:
    assert most_common(sets, current) == expected


def test_equal_files_are_one_set_in_any_order() -> None:
    one, two = file(b"a"), file(b"b", "config.json")
    assert FileSet.of(facts(one, two)) == FileSet.of(facts(two, one))
