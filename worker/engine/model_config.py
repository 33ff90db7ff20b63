"""What the engine needs to know of a model, read from its Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.engine.errors import ModelError

ARCHITECTURE = "LlamaForCausalLM"
DEFAULT_ROPE_THETA = 10_000.0
"""Of `LlamaConfig`, for configurations that name none."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes of a Llama model. `eos_token_ids` end a reply; `max_position_embeddings` is in tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tied_embeddings: bool
    eos_token_ids: frozenset[int]

    @classmethod
    def from_folder(cls, folder: Path) -> ModelSpec:
        """Read `config.json` and, where there is one, `generation_config.json`, whose eos ids win as in
        `transformers`. Raises ModelError for what the engine does not implement."""
        config = _read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        overrides = _read_json(generation) if generation.is_file() else {}
        return cls.from_config({**config, "eos_token_id": overrides.get("eos_token_id", config.get("eos_token_id"))})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """The same from a parsed `config.json`."""
        _refuse_unsupported(config)
        hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
        kv_heads = _integer(config, "num_key_value_heads", heads)
        head_dim = _integer(config, "head_dim", hidden // heads)
        if heads % kv_heads or head_dim % 2:
            raise ModelError(
                f"config.json: {heads} heads must be a multiple of {kv_heads} KV heads, head_dim {head_dim} even"
            )
        return cls(
            vocab_size=_integer(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_integer(config, "intermediate_size"),
            num_layers=_integer(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=_number(config, "rms_norm_eps", 1e-6),
            rope_theta=_rope_theta(config),
            max_position_embeddings=_integer(config, "max_position_embeddings", 2048),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            eos_token_ids=_token_ids(config.get("eos_token_id")),
        )

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of KV cache that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    architectures = config.get("architectures")
    if architectures != [ARCHITECTURE]:
        raise ModelError(f"config.json: architectures is {architectures!r}; this engine serves [{ARCHITECTURE!r}] only")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"config.json: hidden_act {config['hidden_act']!r} is not implemented, only 'silu'")
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            raise ModelError(f"config.json: {name} is not implemented")
    if config.get("quantization_config"):
        raise ModelError("config.json: quantized weights are not implemented; use the unquantized checkpoint")


def _rope_theta(config: Mapping[str, Any]) -> float:
    """`rope_parameters` since transformers 5, `rope_theta` beside `rope_scaling` before."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ModelError(f"config.json: rope_parameters is {rope!r}, not an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ModelError(f"config.json: rope type {kind!r} is not implemented, only 'default'")
    if "rope_theta" in rope:
        return _number(rope, "rope_theta")
    return _number(config, "rope_theta", DEFAULT_ROPE_THETA)


def _token_ids(value: object) -> frozenset[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) for item in ids):
        raise ModelError(f"config.json: eos_token_id is {value!r}, neither an integer nor a list of them")
    return frozenset(ids)


def _integer(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {name} is {value!r}, not a positive integer")
    return value


def _number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or value <= 0:
        raise ModelError(f"config.json: {name} is {value!r}, not a positive number")
    return float(value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing: the model path must be a Hugging Face folder") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value
