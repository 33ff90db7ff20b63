"""The choice of the next token from logits."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from worker.engine.request import EngineRequest

GREEDY_TEMPERATURE = 1e-5
"""Below it the distribution is one token for any model; dividing by it would overflow."""


def sample(logits: Tensor, requests: Sequence[EngineRequest]) -> list[int]:
    """One token id a row of `logits` [rows, vocab]. Each request draws from its own random numbers, so that a seed
    gives the same reply whatever else is in the batch."""
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for row, request in enumerate(requests):
        if request.sampling.temperature >= GREEDY_TEMPERATURE:
            tokens[row] = _draw(logits[row] / request.sampling.temperature, request.sampling.top_p, request.random)
    return tokens


def _draw(scaled: Tensor, top_p: float, source: random.Random) -> int:
    """Invert the cumulative distribution, of all tokens or of the smallest set with mass `top_p`. In fp64, where
    50,000 terms add up without a gap at the end."""
    probabilities = scaled.double().softmax(dim=-1)
    if top_p >= 1.0:
        return _invert(probabilities.cumsum(dim=-1), source)
    probabilities, order = probabilities.sort(descending=True, stable=True)
    cumulative = probabilities.cumsum(dim=-1)
    kept = int(torch.searchsorted(cumulative, top_p).item()) + 1
    return int(order[_invert(cumulative[:kept], source)])


def _invert(cumulative: Tensor, source: random.Random) -> int:
    point = source.random() * float(cumulative[-1])
    return min(int(torch.searchsorted(cumulative, point, right=True).item()), len(cumulative) - 1)
