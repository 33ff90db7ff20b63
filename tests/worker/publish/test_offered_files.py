"""What a worker offers of its model's folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support import folder_of
from warmroute.model_files import FILE_BYTES, is_model_file, offered
from worker.publish.offered_files import ModelFiles


def test_tokenizer_templates_and_configuration_are_offered_and_nothing_else(tmp_path: Path) -> None:
    contents = {
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b'{"a": 1}',
        "chat_template.jinja": b"x",
        "additional_chat_templates/tools.jinja": b"y",
        "config.json": b"z",
    }
    rest = {"model.safetensors": b"w", "additional_chat_templates/notes.txt": b"n", "vocab.txt": b"v"}
    files = ModelFiles.from_folder(folder_of(tmp_path, {**contents, **rest}))
    assert {file.name: file.digest for file in files.files} == {
        name: hashlib.sha256(data).hexdigest() for name, data in contents.items()
    }
    assert {file.name: file.size for file in files.files} == {name: len(data) for name, data in contents.items()}
    assert files.tokenizer is not None
    assert files.tokenizer.digest == hashlib.sha256(b"{}").hexdigest()
    for file in files.files:
        assert files.read(file.digest, 0, 1 << 20) == contents[file.name]
        assert files.read(file.digest, 1, 3) == contents[file.name][1:4]
    with pytest.raises(KeyError):
        files.read("0" * 64, 0, 1)


def test_what_is_empty_or_too_large_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of(tmp_path, {"tokenizer.json": b"{}", "chat_template.jinja": b""})
    with (folder / "config.json").open("wb") as file:
        file.truncate(FILE_BYTES + 1)
    assert [file.name for file in ModelFiles.from_folder(folder).files] == ["tokenizer.json"]
    assert "config.json" in caplog.text
    assert "chat_template.jinja" in caplog.text


def test_a_folder_without_a_tokenizer_offers_none(tmp_path: Path) -> None:
    assert ModelFiles.from_folder(tmp_path).tokenizer is None
    with pytest.raises(OSError, match="no folder"):
        ModelFiles.from_folder(tmp_path / "missing")


@pytest.mark.parametrize(
    "name",
    [
        *("", "/etc/passwd", "../tokenizer.json", "a/tokenizer.json", "x.jinja"),
        *("additional_chat_templates/../x.jinja", "additional_chat_templates/.jinja"),
        *("additional_chat_templates/a/b.jinja", "additional_chat_templates/a.jinja\n"),
    ],
)
def test_names_that_are_no_model_files(name: str) -> None:
    assert not is_model_file(name)


def test_malformed_offers_are_left_out() -> None:
    good = {"name": "tokenizer.json", "digest": "a" * 64, "size": 1}
    bad = [
        *(7, None, "x", [], {}),
        {**good, "digest": "A" * 64},
        {**good, "size": 0},
        {**good, "size": FILE_BYTES + 1},
        {**good, "size": "1"},
        {**good, "name": "../../x"},
    ]
    assert offered([*bad, good, {**good, "size": 2}]) == {"tokenizer.json": ("a" * 64, 1)}
    many = [{**good, "name": f"additional_chat_templates/{number}.jinja"} for number in range(100)]
    assert len(offered(many)) == 32
