"""The cache of the built-in model, with a small model in its place; the real one in `test_engine_smollm2.py`."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.worker.engine.gguf_support import write_gguf
from tests.worker.engine.support import MAX_POSITIONS, VOCAB_SIZE
from worker import model_cache
from worker.model_cache import INSTALL, ModelCacheError, StderrBar, cache_folder, ensure_model

DiskUsage = namedtuple("DiskUsage", "total used free")


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("small-llama")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return write_gguf(folder / "model.gguf", folder).read_bytes()


@pytest.fixture
def source(tmp_path: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's GGUF file. Its module raises on import, since nothing may import it."""
    package = tmp_path / "site" / "small_llm_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    (package / "model.gguf").write_bytes(gguf_bytes)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(model_cache, "PACKAGE", "small_llm_package")
    monkeypatch.setenv("WARMROUTE_CACHE_DIR", str(tmp_path / "cache"))
    return package / "model.gguf"


def ignore(_done: int, _total: int) -> None:
    """A progress callback."""


def folders() -> list[Path]:
    return [path for path in cache_folder().iterdir() if path.is_dir()]


def test_converted_once(source: Path) -> None:
    seen: list[int] = []
    folder = ensure_model(lambda done, _total: seen.append(done))
    assert seen == list(range(seen[-1] + 1))
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert before.keys() >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert ensure_model(lambda _done, _total: pytest.fail("converted again")) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert folders() == [folder]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "manifest.json"])
def test_a_damaged_folder_is_made_again(source: Path, name: str) -> None:
    folder = ensure_model(ignore)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-10])
    assert ensure_model(ignore) == folder
    assert (folder / name).read_bytes() == whole
    (folder / name).unlink()
    assert ensure_model(ignore) == folder
    assert (folder / name).read_bytes() == whole


def test_another_source_or_converter_replaces_the_folder(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_model(ignore)
    leftover = cache_folder() / f"{model_cache.FOLDER_PREFIX}partial-1"
    leftover.mkdir()
    source.write_bytes(source.read_bytes() + b"\0")
    second = ensure_model(ignore)
    monkeypatch.setattr(model_cache, "CONVERTER_VERSION", 99)
    third = ensure_model(ignore)
    assert len({first, second, third}) == 3
    assert folders() == [third]


ENSURE_IN_PROCESS = """
import sys
from worker import model_cache
sys.path.insert(0, sys.argv[1])
model_cache.PACKAGE = "small_llm_package"
seen = []
print(model_cache.ensure_model(lambda done, total: seen.append(done)), len(seen))
"""


def test_processes_at_once_convert_once(source: Path) -> None:
    command = [sys.executable, "-c", ENSURE_IN_PROCESS, str(source.parent.parent)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outcomes = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert {folder for folder, _ in outcomes} == {str(folder) for folder in folders()}
    assert sum(converted != "0" for _, converted in outcomes) == 1


def test_whoever_waited_for_the_lock_looks_again(source: Path) -> None:
    folder = ensure_model(ignore)
    shutil.rmtree(folder)
    lock = cache_folder() / f"{model_cache.FOLDER_PREFIX}lock"
    with ThreadPoolExecutor(1) as pool:
        with model_cache._lock(lock):
            waiting = pool.submit(ensure_model, lambda _done, _total: pytest.fail("converted again"))
            deadline = time.monotonic() + 10
            while sum(os.path.realpath(fd) == str(lock) for fd in Path("/proc/self/fd").iterdir()) < 2:
                assert time.monotonic() < deadline, "the other one never came to the lock"
            model_cache._convert(source, folder, ignore)
        assert waiting.result(timeout=10) == folder


def test_a_full_disk(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = model_cache.SPARE_BYTES + 4 * 30_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: DiskUsage(10**9, 10**9 - 5_000, 5_000))
    with pytest.raises(ModelCacheError, match="WARMROUTE_CACHE_DIR") as caught:
        ensure_model(ignore)
    assert str(cache_folder()) in str(caught.value)
    assert "5,000 bytes free" in str(caught.value)
    assert folders() == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: DiskUsage(10**9, 0, 2 * needed))
    ensure_model(ignore)


def test_a_failure_half_way_leaves_nothing(source: Path) -> None:
    def fail(done: int, _total: int) -> None:
        if done == 3:
            raise OSError(28, "No space left on device")

    with pytest.raises(ModelCacheError, match="No space left on device"):
        ensure_model(fail)
    assert folders() == []
    ensure_model(ignore)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(source: Path) -> None:
    cache_folder().mkdir()
    cache_folder().chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ModelCacheError, match="cannot be written"):
        ensure_model(ignore)


def test_a_file_in_the_place_of_the_folder(source: Path) -> None:
    cache_folder().write_text("not a folder")
    with pytest.raises(ModelCacheError, match="cannot be written"):
        ensure_model(ignore)


def test_a_damaged_source(source: Path) -> None:
    source.write_bytes(source.read_bytes()[:-1000])
    with pytest.raises(ModelCacheError, match="--force-reinstall") as caught:
        ensure_model(ignore)
    assert str(source) in str(caught.value)
    assert folders() == []
    source.unlink()
    with pytest.raises(ModelCacheError, match="0 GGUF files"):
        ensure_model(ignore)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "PACKAGE", "no_such_package_here")
    with pytest.raises(ModelCacheError) as caught:
        ensure_model(ignore)
    assert INSTALL in str(caught.value)


def test_a_lock_that_is_never_released(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "LOCK_SECONDS", 0.0)
    monkeypatch.setattr(model_cache, "POLL_SECONDS", 0.01)
    cache_folder().mkdir()
    lock = cache_folder() / f"{model_cache.FOLDER_PREFIX}lock"
    with model_cache._lock(lock), pytest.raises(ModelCacheError, match="another process has held"):
        ensure_model(ignore)
    ensure_model(ignore)


def test_where_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMROUTE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/warmroute")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache/warmroute"
    monkeypatch.setenv("WARMROUTE_CACHE_DIR", "/own")
    assert cache_folder() == Path("/own")


def test_progress_off_a_terminal_is_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    bar = StderrBar("model")
    for done in range(101):
        bar(done, 100)
    assert capsys.readouterr().err.splitlines() == [f"model: {done} of 100 tensors" for done in (0, 25, 50, 75, 100)]


def test_progress_on_a_terminal_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = StderrBar("model")
    for done in range(101):
        bar(done, 100)
    lines = capsys.readouterr().err.split("\r")
    assert lines[-1] == f"model [{'#' * 40}] 100/100\n"
    assert len(lines) == 42


def test_the_manifest_lists_every_file(source: Path) -> None:
    folder = ensure_model(ignore)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest == {path.name: path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json"}
