"""Files beside the rest of a stream: one chunk after the other, as the indexer answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support import eventually, folder_of
from warmroute.v1 import index_pb2 as pb
from worker.publish.file_uploads import ACK_SECONDS, CHUNK_BYTES, FileUploads
from worker.publish.offered_files import ModelFiles, OfferedFile

CONTENTS = {"tokenizer.json": b"t" * (2 * CHUNK_BYTES + 5), "config.json": b"{}"}


class Sender:
    """The uploads, and what the indexer would do with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder_of(folder, CONTENTS)
        self.files = ModelFiles.from_folder(self.folder)
        self.woken = 0
        self.uploads = FileUploads(self.files, wake=self.wake)

    def wake(self) -> None:
        self.woken += 1

    def file(self, name: str) -> OfferedFile:
        return next(file for file in self.files.files if file.name == name)

    async def chunk(self, now: float = 0.0) -> pb.FileChunk:
        return await eventually(lambda: self.uploads.next_chunk(now))

    def acknowledge(self, chunk: pb.FileChunk, refused: str = "") -> None:
        received = chunk.offset + len(chunk.data)
        self.uploads.acknowledged(pb.FileAck(digest=chunk.digest, received=received, refused=refused))


def run(folder: Path, scenario: Callable[[Sender], Awaitable[None]]) -> None:
    async def limited() -> None:
        sender = Sender(folder)
        async with asyncio.timeout(30):
            try:
                await scenario(sender)
            finally:
                await sender.uploads.close()

    asyncio.run(limited())


def test_files_go_one_after_the_other_chunk_by_chunk(tmp_path: Path) -> None:
    async def scenario(sender: Sender) -> None:
        tokenizer, config = sender.file("tokenizer.json"), sender.file("config.json")
        sender.uploads.want([tokenizer.digest, config.digest, "f" * 64])
        sender.uploads.want([config.digest, tokenizer.digest])
        sent: dict[str, bytes] = {}
        for number in range(4):
            chunk = await sender.chunk()
            assert sender.woken == number + 1
            assert sender.uploads.next_chunk(0.0) is None  # until it is acknowledged
            assert chunk.offset == len(sent.get(chunk.digest, b""))
            sent[chunk.digest] = sent.get(chunk.digest, b"") + chunk.data
            sender.acknowledge(chunk)
        assert sent == {file.digest: CONTENTS[file.name] for file in (tokenizer, config)}
        assert sender.uploads.next_chunk(0.0) is None

    run(tmp_path, scenario)


def test_a_file_may_be_asked_for_again_later(tmp_path: Path) -> None:
    async def scenario(sender: Sender) -> None:
        for _ in range(2):
            sender.uploads.want([sender.file("config.json").digest])
            sender.acknowledge(await sender.chunk())

    run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["refused", "silent", "gone", "shorter"])
def test_a_file_that_fails_makes_way_for_the_next(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(sender: Sender) -> None:
        sender.uploads.want([sender.file("tokenizer.json").digest, sender.file("config.json").digest])
        first = await sender.chunk()
        now = 0.0
        match how:
            case "refused":
                sender.acknowledge(first, refused="it is not liked")
            case "silent":
                now = ACK_SECONDS + 1
            case "gone":
                (sender.folder / "tokenizer.json").unlink()
                sender.acknowledge(first)
            case "shorter":
                (sender.folder / "tokenizer.json").write_bytes(b"t")
                sender.acknowledge(first)
        chunk = await sender.chunk(now)
        assert chunk.digest == sender.file("config.json").digest
        assert "tokenizer.json is not sent to the indexer" in caplog.text

    run(tmp_path, scenario)


def test_a_file_that_grew_is_sent_as_long_as_hello_said(tmp_path: Path) -> None:
    async def scenario(sender: Sender) -> None:
        (sender.folder / "config.json").write_bytes(b"{} and more")
        sender.uploads.want([sender.file("config.json").digest])
        assert (await sender.chunk()).data == b"{}"

    run(tmp_path, scenario)


def test_answers_to_nothing_are_ignored(tmp_path: Path) -> None:
    async def scenario(sender: Sender) -> None:
        digest = sender.file("tokenizer.json").digest
        sender.uploads.acknowledged(pb.FileAck(digest=digest, received=5))
        sender.uploads.want([digest])
        sender.uploads.acknowledged(pb.FileAck(digest=digest, received=5))
        assert (await sender.chunk()).offset == 0

    run(tmp_path, scenario)
