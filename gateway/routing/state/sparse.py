"""Predicted entries of other gateways, which report every eighth key.

A key names its block and everything before it, and the request that was predicted leaves all those blocks on the
worker. So the deepest key found decides; those before it need not be known, and may have been confirmed already when
the request was routed. Up to seven blocks beyond it count as not held: the price of sending fewer keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.routing.state.predictions import Predictions

STRIDE: Final = 8


def sparse_keys(keys: Sequence[int], start: int, limit: int) -> Sequence[int]:
    """Every eighth key of a prompt, counted from its beginning, of the blocks from `start` on; at most `limit`."""
    first = start + (-start - 1) % STRIDE
    return keys[first : first + STRIDE * limit : STRIDE]


class SparsePredictions(Predictions):
    """What other gateways expect on the workers; withdrawn when they say so or fall silent."""

    def match(self, keys: Sequence[int]) -> dict[str, int]:
        """For every worker that is expected to hold at least eight blocks: how many leading blocks."""
        depths: dict[str, int] = {}
        if self._holders:
            for position in range(STRIDE - 1, len(keys), STRIDE):
                for worker in self._holders.get(keys[position], ()):
                    depths[worker] = position + 1
        return depths
