from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from worker.engine.errors import ModelError
from worker.engine.loader import ModelWeights, load_weights
from worker.engine.model_config import ModelSpec


def load(folder: Path, spec: ModelSpec, dtype: torch.dtype = torch.float32) -> ModelWeights:
    return load_weights(folder, spec, device=torch.device("cpu"), dtype=dtype)


def mapped_from(address: int) -> str:
    """The file behind an address of this process, from the kernel's list of mappings."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= address < end:
            return line.split(maxsplit=5)[-1]
    raise AssertionError("no mapping")


def test_weights_stay_in_the_file(tiny_folder: Path) -> None:
    """Views of the mapped file are what lets workers share memory."""
    weights = load(tiny_folder, ModelSpec.from_folder(tiny_folder))
    for tensor in (weights.embedding, weights.head, weights.layers[1].down):
        assert mapped_from(tensor.data_ptr()) == str(tiny_folder / "model.safetensors")


def test_another_type_is_converted(tiny_folder: Path) -> None:
    weights = load(tiny_folder, ModelSpec.from_folder(tiny_folder), torch.bfloat16)
    assert weights.layers[0].query.dtype is torch.bfloat16


def test_tied_embeddings_are_one_tensor(tiny_folder: Path) -> None:
    weights = load(tiny_folder, replace(ModelSpec.from_folder(tiny_folder), tied_embeddings=True))
    assert weights.head is weights.embedding


def test_sharded_weights(tiny_folder: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny_folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, tmp_path / file)
    index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    spec = ModelSpec.from_folder(tiny_folder)
    assert torch.equal(load(tmp_path, spec).layers[1].up, load(tiny_folder, spec).layers[1].up)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors cannot be read"):
        load(tmp_path, spec)


def test_damage_is_named(tiny_folder: Path, tmp_path: Path) -> None:
    spec = ModelSpec.from_folder(tiny_folder)
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        load(tmp_path, spec)
    target = tmp_path / "model.safetensors"
    tensors = load_file(tiny_folder / "model.safetensors")
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, target)
    with pytest.raises(ModelError, match=r"model\.norm\.weight is missing"):
        load(tmp_path, spec)
    save_file({**tensors, "model.norm.weight": norm[:10].clone()}, target)
    with pytest.raises(ModelError, match=r"shape \(10,\), config.json asks for \(64,\)"):
        load(tmp_path, spec)
    target.write_bytes((tiny_folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path, spec)
