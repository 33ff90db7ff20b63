"""The conversion, on a small GGUF written here with the tensors of a known model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tests.worker.engine.gguf_support import VOCABULARY, write_gguf
from worker.engine.gguf_convert import ConversionError, GgufModel, build_tokenizer
from worker.engine.loader import load_weights
from worker.engine.model_config import ModelSpec


def convert(source: Path, folder: Path) -> list[tuple[int, int]]:
    folder.mkdir()
    seen: list[tuple[int, int]] = []
    GgufModel(source).write(folder, lambda done, total: seen.append((done, total)))
    return seen


def test_weights_come_back_in_hugging_face_order(
    tiny_folder: Path, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    source = write_gguf(tmp_path / "model.gguf", tiny_folder)
    seen = convert(source, tmp_path / "out")
    original, converted = load_file(tiny_folder / "model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    assert converted.keys() == original.keys()
    assert all(torch.equal(converted[name], original[name]) for name in original)
    assert seen == [(done, len(original)) for done in range(len(original) + 1)]
    assert (tmp_path / "out/model.safetensors").stat().st_size >= GgufModel(source).output_bytes
    spec = ModelSpec.from_folder(tmp_path / "out")
    load_weights(tmp_path / "out", spec, device=torch.device("cpu"), dtype=torch.float32)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.tied_embeddings) == (2, 4, 2, False)
    assert (spec.rope_theta, spec.eos_token_ids, spec.max_position_embeddings) == (10_000.0, {2}, 512)
    assert spec.rms_norm_eps == tiny_reference.config.rms_norm_eps


def test_transformers_reads_the_folder(tiny_folder: Path, tiny_reference: LlamaForCausalLM, tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "model.gguf", tiny_folder), tmp_path / "out")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = torch.arange(3, 40).unsqueeze(0)
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, tiny_reference(ids).logits)


def test_quantised_tensors_are_close(tiny_folder: Path, tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "model.gguf", tiny_folder, quantise=True), tmp_path / "out")
    original, converted = load_file(tiny_folder / "model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(converted[name], original[name])
    assert np.abs(converted[name].numpy() - original[name].numpy()).max() < 0.02


def test_the_tokenizer(tiny_folder: Path, tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "model.gguf", tiny_folder), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    encoding = tokenizer.encode("<|im_start|>the 123<|im_end|>")
    assert encoding.tokens == ["<|im_start|>", "the", "\u0120", "1", "2", "3", "<|im_end|>"]
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == "<|im_start|>the 123<|im_end|>"
    assert tokenizer.decode(encoding.ids) == "the 123"
    config = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert (config["eos_token"], config["bos_token"]) == ("<|im_end|>", "<|im_start|>")
    assert "messages" in config["chat_template"]
    assert len(VOCABULARY) == tokenizer.get_vocab_size()


def test_what_cannot_be_converted_says_so(tiny_folder: Path, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", tiny_folder)
    whole = source.read_bytes()
    for cut in (0, 3, 1000, len(whole) // 2, len(whole) - 1):
        source.write_bytes(whole[:cut])
        with pytest.raises(ConversionError):
            convert(source, tmp_path / f"cut-{cut}")
    with pytest.raises(ConversionError, match="'mamba'"):
        GgufModel(write_gguf(tmp_path / "other.gguf", tiny_folder, architecture="mamba"))
    facts = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}
    with pytest.raises(ValueError, match="kind \\('llama', 'default', False\\)"):
        build_tokenizer(facts)
