"""Weights from safetensors files, mapped into memory.

On the CPU in the checkpoint's own type nothing is copied: the tensors are views of the mapped file, so that several
workers on one machine share its pages. That is also why nothing is fused or transposed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from worker.engine.errors import ModelError
from worker.engine.model_config import ModelSpec

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices are [out, in], norms [hidden]."""

    input_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    post_attention_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A whole Llama. `embedding` and `head` are [vocab, hidden], one tensor where the model ties them."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def load_weights(folder: Path, spec: ModelSpec, *, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Map the folder's weights. Raises ModelError naming the file for a missing or misshapen tensor."""
    tensors = _Tensors(folder, device, dtype)
    hidden, inner, query = spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim

    def layer(number: int) -> LayerWeights:
        prefix = f"model.layers.{number}."
        return LayerWeights(
            input_norm=tensors.take(f"{prefix}input_layernorm.weight", hidden),
            query=tensors.take(f"{prefix}self_attn.q_proj.weight", query, hidden),
            key=tensors.take(f"{prefix}self_attn.k_proj.weight", kv, hidden),
            value=tensors.take(f"{prefix}self_attn.v_proj.weight", kv, hidden),
            output=tensors.take(f"{prefix}self_attn.o_proj.weight", hidden, query),
            post_attention_norm=tensors.take(f"{prefix}post_attention_layernorm.weight", hidden),
            gate=tensors.take(f"{prefix}mlp.gate_proj.weight", inner, hidden),
            up=tensors.take(f"{prefix}mlp.up_proj.weight", inner, hidden),
            down=tensors.take(f"{prefix}mlp.down_proj.weight", hidden, inner),
        )

    embedding = tensors.take("model.embed_tokens.weight", spec.vocab_size, hidden)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(layer(number) for number in range(spec.num_layers)),
        norm=tensors.take("model.norm.weight", hidden),
        head=embedding if spec.tied_embeddings else tensors.take("lm_head.weight", spec.vocab_size, hidden),
    )


class _Tensors:
    """The tensors of a folder by name, whether it has one file or an index over several."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._folder = folder
        self._device = device
        self._dtype = dtype
        self._tensors: dict[str, Tensor] = {}
        for path in _weight_files(folder):
            try:
                with safe_open(path, framework="pt") as file:
                    self._tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{path} cannot be read: {error}") from error

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            raise ModelError(f"{self._folder}: the tensor {name} is missing from the weights")
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{self._folder}: {name} has shape {tuple(tensor.shape)}, config.json asks for {shape}")
        return tensor.to(self._device, self._dtype)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    index = folder / INDEX_FILE
    if not index.is_file():
        raise ModelError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index} cannot be read: {error}") from error
    return [folder / name for name in sorted(names)]
