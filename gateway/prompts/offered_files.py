"""The files that a pool's workers offer: fetched from the index, checked, and written into a folder.

Files in Redis are not trusted: each must have the size and the SHA-256 of the workers' facts, and its name must be one
of `warmroute.model_files`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from indexer.layout import WorkerFacts, file_key
from warmroute.model_files import TOKENIZER_FILE, offered
from warmroute.redis.client import Client

# Redis needs a fraction of a millisecond for such a piece; other calls wait meanwhile.
PIECE_BYTES: Final = 262_144
TOTAL_BYTES: Final = 134_217_728


class ModelFilesError(Exception):
    """A file cannot be fetched, or is not the one that the workers offer. The message names it and the remedy."""


class NotThereYetError(ModelFilesError):
    """The index does not have a file yet. Workers send it within seconds after their Hello."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file as workers name it: `digest` is its SHA-256, `size` its bytes."""

    name: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files that one worker offers, with a tokenizer. Equal for workers with the same files."""

    files: tuple[ModelFile, ...]

    @classmethod
    def of(cls, facts: WorkerFacts) -> Self | None:
        """None where the worker offers no tokenizer, or more than TOTAL_BYTES."""
        taken = offered(facts.files)
        if TOKENIZER_FILE not in taken or sum(size for _, size in taken.values()) > TOTAL_BYTES:
            return None
        return cls(tuple(ModelFile(name, *taken[name]) for name in sorted(taken)))

    @property
    def tokenizer(self) -> str:
        """The digest of `tokenizer.json`."""
        return next(file.digest for file in self.files if file.name == TOKENIZER_FILE)

    @property
    def template(self) -> str:
        """A digest of all other files: of what chats are rendered with."""
        others = "\n".join(f"{file.name} {file.digest}" for file in self.files if file.name != TOKENIZER_FILE)
        return hashlib.sha256(others.encode()).hexdigest()

    @property
    def bare(self) -> bool:
        """Whether there is only a tokenizer, as from workers that send no templates."""
        return len(self.files) == 1


async def fetch(redis: Client, pool: str, files: FileSet) -> Mapping[ModelFile, bytes]:
    """The compressed files of the index; `unpack` checks them.

    Raises NotThereYetError, ModelFilesError, RedisError.
    """
    return {file: await _fetch_file(redis, pool, file) for file in files.files}


def unpack(compressed: Mapping[ModelFile, bytes], folder: Path) -> None:
    """Check the files and write them into the folder. Takes a second for a large tokenizer: call it on a thread.

    Raises ModelFilesError where a size or a digest is wrong, and OSError.
    """
    for file, data in compressed.items():
        contents = _contents(file, data)
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)


async def _fetch_file(redis: Any, pool: str, file: ModelFile) -> bytes:
    key = file_key(pool, file.digest)
    # Incompressible data grows by a few bytes in a thousand.
    limit = file.size + file.size // 100 + PIECE_BYTES
    pieces: list[bytes] = []
    read = 0
    while read <= limit:
        piece: bytes = await redis.getrange(key, read, read + PIECE_BYTES - 1)
        pieces.append(piece)
        read += len(piece)
        if len(piece) < PIECE_BYTES:
            break
    if not read:
        raise NotThereYetError(f"{file.name} ({file.digest[:8]}) has not come from a worker yet")
    return b"".join(pieces)


def _contents(file: ModelFile, data: bytes) -> bytes:
    """Unpacks at most one byte more than the file's size, to bound the memory."""
    unpacker = zlib.decompressobj()
    try:
        contents = unpacker.decompress(data, file.size + 1)
    except zlib.error as error:
        raise _wrong(file, f"does not unpack: {error}") from error
    if len(contents) != file.size:
        raise _wrong(file, f"has not {file.size} bytes")
    if hashlib.sha256(contents).hexdigest() != file.digest:
        raise _wrong(file, "has another SHA-256")
    return contents


def _wrong(file: ModelFile, what: str) -> ModelFilesError:
    return ModelFilesError(
        f"{file.name} in the index {what}: delete its key (...:files:{file.digest}), and a worker sends it again"
    )


def most_common(sets: Iterable[FileSet], current: FileSet | None) -> FileSet | None:
    """The set to key with: the most common one among workers with the most common tokenizer. Ties go to `current`.

    A bare set has no templates: it is chosen only where no other set has its tokenizer.
    """
    by_tokenizer: dict[str, dict[FileSet, int]] = {}
    for files in sets:
        votes = by_tokenizer.setdefault(files.tokenizer, {})
        votes[files] = votes.get(files, 0) + 1
    if not by_tokenizer:
        return None
    mine = "" if current is None else current.tokenizer
    _, _, votes = max(
        ((sum(votes.values()), tokenizer == mine, votes) for tokenizer, votes in by_tokenizer.items()),
        key=lambda item: item[:2],
    )
    full = {files: count for files, count in votes.items() if not files.bare} or votes
    return max(full, key=lambda files: (full[files], files == current))
