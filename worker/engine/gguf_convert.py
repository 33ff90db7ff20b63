"""A Llama in GGUF, written out as a Hugging Face folder in fp32.

GGUF is llama.cpp's format: quantised tensors under names of its own and the tokenizer as metadata. The conversion goes
tensor by tensor, so that it needs the memory of the largest one only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONVERTER_VERSION = 1
"""Raise it whenever the output for the same input changes: cached conversions are then made again."""

CONTROL_TOKEN = 3
"""`token_type` of special tokens, from llama.cpp's `llama_token_type`."""

Progress = Callable[[int, int], None]
"""Called with the number of tensors done and of all tensors."""

Matrix = NDArray[np.float32]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_PATTERN = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


class ConversionError(ValueError):
    """The file is damaged, or not a model that this converter knows."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A tensor to write: its Hugging Face name and shape [out, in], and how many heads its rows are grouped in by
    llama.cpp (0 for none)."""

    name: str
    shape: tuple[int, ...]
    source: ReaderTensor
    heads: int


class GgufModel:
    """A GGUF file, opened. Raises ConversionError where it cannot be read or holds another architecture."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = GGUFReader(path)
            self._facts = {
                name: field.contents() for name, field in self._reader.fields.items() if not name.startswith("GGUF.")
            }
            self._targets = list(self._find_targets())
        except (OSError, ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError) as error:
            raise ConversionError(f"{path} is damaged or not a Llama in GGUF: {error!r}") from error

    @property
    def output_bytes(self) -> int:
        """Size of the weights to be written."""
        return sum(4 * int(np.prod(target.shape)) for target in self._targets)

    def write(self, folder: Path, progress: Progress) -> None:
        """Fill an empty folder. Raises ConversionError, or OSError where it cannot write."""
        try:
            self._write_configs(folder)
            build_tokenizer(self._facts).save(str(folder / "tokenizer.json"))
            self._write_weights(folder / "model.safetensors", progress)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ConversionError(f"the GGUF file is damaged: {error!r}") from error

    def _find_targets(self) -> Iterator[_Target]:
        if self._facts["general.architecture"] != "llama":
            raise ValueError(f"architecture {self._facts['general.architecture']!r}")
        heads = {"attn_q": self._facts["llama.attention.head_count"]}
        heads["attn_k"] = self._facts["llama.attention.head_count_kv"]
        for tensor in self._reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))  # GGUF names the fastest dimension first
            if tensor.name in _TOP_NAMES:
                yield _Target(_TOP_NAMES[tensor.name], shape, tensor, 0)
                continue
            match = _LAYER_PATTERN.fullmatch(tensor.name)
            if match is None or match[2] not in _LAYER_NAMES:
                raise ValueError(f"unknown tensor {tensor.name!r}")
            name = f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"
            yield _Target(name, shape, tensor, heads.get(match[2], 0))

    def _write_weights(self, path: Path, progress: Progress) -> None:
        """In the safetensors format: length of the header as u64-LE, header as JSON, data in the header's order."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for target in self._targets:
            end = offset + 4 * int(np.prod(target.shape))
            header[target.name] = {"dtype": "F32", "shape": target.shape, "data_offsets": [offset, end]}
            offset = end
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)  # the data must start aligned, or mapped tensors are slow
        with path.open("wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            for done, target in enumerate(self._targets):
                progress(done, len(self._targets))
                file.write(_read_tensor(target).astype("<f4", copy=False).tobytes())
        progress(len(self._targets), len(self._targets))

    def _write_configs(self, folder: Path) -> None:
        facts = self._facts
        tokens = facts["tokenizer.ggml.tokens"]
        bos, eos = facts["tokenizer.ggml.bos_token_id"], facts["tokenizer.ggml.eos_token_id"]
        padding = facts.get("tokenizer.ggml.padding_token_id", eos)
        special_ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": padding}
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": facts["llama.embedding_length"],
            "intermediate_size": facts["llama.feed_forward_length"],
            "num_hidden_layers": facts["llama.block_count"],
            "num_attention_heads": facts["llama.attention.head_count"],
            "num_key_value_heads": facts["llama.attention.head_count_kv"],
            "max_position_embeddings": facts["llama.context_length"],
            "rms_norm_eps": float(np.format_float_positional(np.float32(facts[_EPS]))),
            "rope_theta": facts.get("llama.rope.freq_base", 10_000.0),
            "hidden_act": "silu",
            "vocab_size": len(tokens),
            "tie_word_embeddings": all(target.name != "lm_head.weight" for target in self._targets),
            "torch_dtype": "float32",
            **special_ids,
        }
        tokenizer_config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[bos],
            "eos_token": tokens[eos],
            "pad_token": tokens[padding],
            "unk_token": tokens[facts.get("tokenizer.ggml.unknown_token_id", 0)],
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": facts["llama.context_length"],
            "chat_template": facts["tokenizer.chat_template"],
        }
        for name, value in (
            ("config.json", config),
            ("generation_config.json", special_ids),
            ("tokenizer_config.json", tokenizer_config),
        ):
            (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


_EPS = "llama.attention.layer_norm_rms_epsilon"


def build_tokenizer(facts: dict[str, Any]) -> Tokenizer:
    """A byte-level BPE from GGUF metadata. Raises ValueError for kinds of tokenizer that are not implemented."""
    kind = facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"], facts.get("tokenizer.ggml.add_bos_token", False)
    if kind != ("gpt2", "smollm", False):
        raise ValueError(f"a tokenizer of kind {kind!r}; only ('gpt2', 'smollm', False) is implemented")
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    left_and_right = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=left_and_right)
    )
    # "smollm" in llama.cpp: every digit by itself, then GPT-2's pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = facts["tokenizer.ggml.token_type"]
    special = [token for token, kind_number in zip(tokens, types, strict=True) if kind_number == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _read_tensor(target: _Target) -> Matrix:
    matrix: Matrix = dequantize(target.source.data, target.source.tensor_type).astype(np.float32, copy=False)
    matrix = matrix.reshape(target.shape)
    return _ungroup_rotary(matrix, target.heads) if target.heads else matrix


def _ungroup_rotary(matrix: Matrix, heads: int) -> Matrix:
    """llama.cpp rotates neighbouring rows of a head, Hugging Face its two halves: llama.cpp's converter turned rows
    [half, pair] into [pair, half]; this turns them back."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
