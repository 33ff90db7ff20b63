"""The KV cache's tensors, in pages of one block."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from worker.engine.errors import ModelError
from worker.engine.model_config import ModelSpec


class KvCache:
    """Keys and values of every layer, each [blocks, block_tokens, kv_heads, head_dim]. Token t of a request lives in
    slot `block_table[t // block_tokens] * block_tokens + t % block_tokens`."""

    def __init__(
        self, spec: ModelSpec, *, num_blocks: int, block_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.block_tokens = block_tokens
        self.device = device
        shape = (num_blocks, block_tokens, spec.num_kv_heads, spec.head_dim)
        try:
            self._keys = [_zeros(shape, device, dtype) for _ in range(spec.num_layers)]
            self._values = [_zeros(shape, device, dtype) for _ in range(spec.num_layers)]
        except (RuntimeError, MemoryError) as error:
            needed = num_blocks * block_tokens * spec.kv_bytes_per_token(dtype.itemsize)
            raise ModelError(
                f"a KV cache of {needed / 1e6:.0f} MB does not fit on {device}; lower worker.kv_cache_tokens"
            ) from error

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store new tokens: `slots` [n], `keys` and `values` [n, kv_heads, head_dim]."""
        self._keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self._values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def gather(self, layer: int, block_tables: Tensor) -> tuple[Tensor, Tensor]:
        """Contexts by block table: [sequences, n] ids give keys and values [sequences, kv_heads, n * block_tokens,
        head_dim], what lies behind a context's end included."""
        sequences, blocks = block_tables.shape
        flat = block_tables.flatten()

        def contexts(pages: Tensor) -> Tensor:
            gathered = pages.index_select(0, flat)
            return gathered.view(sequences, blocks * self.block_tokens, *pages.shape[2:]).transpose(1, 2)

        return contexts(self._keys[layer]), contexts(self._values[layer])


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros, since padding reads the null block and a NaN there would survive the mask. NumPy's take no memory until
    they are written, PyTorch's do: 750 MB and a second at the default size."""
    if device.type == "cpu" and dtype is torch.float32:
        return torch.from_numpy(np.zeros(shape, dtype=np.float32))
    return torch.zeros(shape, device=device, dtype=dtype)
