from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker.engine.errors import ModelError
from worker.engine.model_config import ModelSpec

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}


def spec(**changes: Any) -> ModelSpec:
    return ModelSpec.from_config({**CONFIG, **changes})


def test_defaults() -> None:
    assert (spec().head_dim, spec().rope_theta, spec().tied_embeddings) == (16, 10_000.0, False)
    assert spec(num_key_value_heads=None).num_kv_heads == 4
    assert spec(head_dim=32).head_dim == 32
    assert spec().kv_bytes_per_token(4) == 2 * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_both_forms_of_rope(rope: dict[str, Any]) -> None:
    assert spec(**rope).rope_theta == 5e5


@pytest.mark.parametrize(("value", "expected"), [(None, set()), (2, {2}), ([2, 0], {2, 0})])
def test_eos(value: object, expected: set[int]) -> None:
    assert spec(eos_token_id=value).eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "architectures is \\['MistralForCausalLM'\\]"),
        ({"architectures": None}, "architectures is None"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope type 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope type 'linear'"),
        ({"rope_parameters": [1]}, "not an object"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"num_key_value_heads": 3}, "multiple of 3 KV heads"),
        ({"head_dim": 7}, "even"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        spec(**changes)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        ModelSpec.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="no JSON object"):
        ModelSpec.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        ModelSpec.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": 1}))
    assert ModelSpec.from_folder(tmp_path).eos_token_ids == {1}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert ModelSpec.from_folder(tmp_path).eos_token_ids == {1, 2}
