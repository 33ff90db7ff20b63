"""The files of a model's folder that a worker offers to the index, whatever the engine beside it."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from warmroute.model_files import FILE_BYTES, FILES, MODEL_FILES, TEMPLATE_FOLDER, TOKENIZER_FILE, is_model_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """One file: its name within the model's folder, its SHA-256 in lower-case hexadecimal, its bytes on disk."""

    name: str
    digest: str
    size: int
    path: Path


class ModelFiles:
    """Tokenizer, templates and configuration of one model, by digest. The contents stay on disk."""

    def __init__(self, files: tuple[OfferedFile, ...] = ()) -> None:
        self.files = files
        self._by_digest = {file.digest: file for file in files}

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """What there is of `warmroute.model_files.MODEL_FILES` and of further chat templates; reads all of it once.

        Files that are empty or larger than `FILE_BYTES` are left out with a warning. Raises OSError where a file that
        is there cannot be read, or the folder is not there.
        """
        names = [name for name in MODEL_FILES if (folder / name).is_file()]
        names += sorted(f"{TEMPLATE_FOLDER}/{path.name}" for path in (folder / TEMPLATE_FOLDER).glob("*.jinja"))
        if not names and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is no folder")
        files: list[OfferedFile] = []
        for name in names:
            path = folder / name
            size = path.stat().st_size
            if not is_model_file(name) or not 0 < size <= FILE_BYTES or len(files) == FILES:
                logger.warning(
                    "%s (%d bytes) is not offered to gateways: files of 1 to %d bytes and plain names are, %d of them",
                    path,
                    size,
                    FILE_BYTES,
                    FILES,
                )
                continue
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            files.append(OfferedFile(name, digest, size, path))
        return cls(tuple(files))

    @property
    def tokenizer(self) -> OfferedFile | None:
        """`tokenizer.json`, by whose digest the worker keys."""
        return next((file for file in self.files if file.name == TOKENIZER_FILE), None)

    def get(self, digest: str) -> OfferedFile | None:
        return self._by_digest.get(digest)

    def read(self, digest: str, offset: int, count: int) -> bytes:
        """A piece of a file. Raises KeyError for a digest that is not offered, OSError where it cannot be read."""
        with self._by_digest[digest].path.open("rb") as file:
            file.seek(offset)
            return file.read(count)
