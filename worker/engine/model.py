"""The Llama decoder over a flat batch: RMSNorm, rotary embedding, SwiGLU, logits where a token is sampled."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  the name everyone uses
from torch import Tensor

from worker.engine.attention import attend
from worker.engine.batch import Batch
from worker.engine.kv_cache import KvCache
from worker.engine.loader import LayerWeights, ModelWeights
from worker.engine.model_config import ModelSpec


class LlamaModel:
    """A decoder-only Llama. Stateless but for its weights and the rotary table [max_context_tokens, head_dim]."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights, *, max_context_tokens: int) -> None:
        self._spec = spec
        self._weights = weights
        self._cos, self._sin = _rotary_table(spec, max_context_tokens, weights.embedding)

    def forward(self, batch: Batch, cache: KvCache) -> Tensor:
        """Compute a step, writing its KV. Returns fp32 logits [len(batch.sample_rows), vocab]."""
        eps = self._spec.rms_norm_eps
        hidden = F.embedding(batch.token_ids, self._weights.embedding)
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        for number, layer in enumerate(self._weights.layers):
            normed = _rms_norm(hidden, layer.input_norm, eps)
            hidden = hidden + self._attention(number, layer, normed, cos, sin, batch, cache)
            hidden = hidden + _mlp(layer, _rms_norm(hidden, layer.post_attention_norm, eps))
        # The head is a third of a small model's work: only rows that are sampled pay for it.
        last = _rms_norm(hidden[batch.sample_rows], self._weights.norm, eps)
        return F.linear(last, self._weights.head).float()

    def _attention(
        self, number: int, layer: LayerWeights, normed: Tensor, cos: Tensor, sin: Tensor, batch: Batch, cache: KvCache
    ) -> Tensor:
        spec = self._spec
        query = F.linear(normed, layer.query).view(-1, spec.num_heads, spec.head_dim)
        key = F.linear(normed, layer.key).view(-1, spec.num_kv_heads, spec.head_dim)
        value = F.linear(normed, layer.value).view(-1, spec.num_kv_heads, spec.head_dim)
        attended = attend(number, _rotate(query, cos, sin), _rotate(key, cos, sin), value, batch, cache)
        return F.linear(attended.flatten(1), layer.output)


def _rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalised in fp32 whatever the type, as the reference implementation does."""
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(hidden.dtype)


def _mlp(layer: LayerWeights, hidden: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(hidden, layer.gate)) * F.linear(hidden, layer.up), layer.down)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in halves: [tokens, heads, head_dim] with [tokens, 1, head_dim] tables."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def _rotary_table(spec: ModelSpec, tokens: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [tokens, 1, head_dim], computed in fp32 and kept in the weights' type."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32), 1.0 / spec.rope_theta**exponents)
    table = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return table.cos().to(like), table.sin().to(like)
