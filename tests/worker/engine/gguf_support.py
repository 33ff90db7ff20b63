"""Writes the tiny model as GGUF, the way llama.cpp's converter would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers

from tests.worker.engine.support import MAX_POSITIONS, VOCAB_SIZE
from worker.engine.model_config import ModelSpec

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e"]
VOCABULARY = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"][:VOCAB_SIZE]
VOCABULARY[-2:] = ["th", "the"]  # in the place of two rare bytes, so that the model's vocabulary fits
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, folder: Path, *, quantise: bool = False, architecture: str = "llama") -> Path:
    """The folder's model with a small tokenizer of its own; returns `path`."""
    spec = ModelSpec.from_folder(folder)
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(MAX_POSITIONS)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in VOCABULARY])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor
        if "q_proj" in name or "k_proj" in name:
            values = _interleave(values, spec.num_heads if "q_proj" in name else spec.num_kv_heads)
        if quantise and values.ndim == 2:
            packed = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(_gguf_name(name), packed, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(_gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _interleave(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Row by row: the two halves of a head become neighbours, as llama.cpp rotates them."""
    size = len(matrix) // heads
    order = [
        head * size + half * (size // 2) + pair for head in range(heads) for pair in range(size // 2) for half in (0, 1)
    ]
    return matrix[order]


def _gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
