from __future__ import annotations

from collections import Counter

import pytest
import torch

from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.sampler import sample

LOGITS = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()


def request(temperature: float, top_p: float = 1.0, seed: int | None = 1) -> EngineRequest:
    return EngineRequest(1, [1], SamplingParams(1, temperature, top_p, seed), block_tokens=16)


def draws(count: int, temperature: float, top_p: float = 1.0, seed: int | None = 1) -> list[int]:
    drawing = request(temperature, top_p, seed)
    return [sample(LOGITS.unsqueeze(0), [drawing])[0] for _ in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_greedy(temperature: float) -> None:
    assert draws(50, temperature) == [0] * 50


@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"),
    [
        (1.0, 1.0, [0.5, 0.25, 0.125, 0.125]),
        (1.0, 0.7, [2 / 3, 1 / 3, 0, 0]),
        (1.0, 0.5, [1, 0, 0, 0]),
        (1.0, 1e-9, [1, 0, 0, 0]),
        (0.5, 1.0, [8 / 11, 2 / 11, 1 / 22, 1 / 22]),
        (0.5, 0.8, [0.8, 0.2, 0, 0]),
    ],
)
def test_distribution(temperature: float, top_p: float, expected: list[float]) -> None:
    counts = Counter(draws(4000, temperature, top_p))
    for token, share in enumerate(expected):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.035)  # four standard deviations
        assert (counts[token] > 0) == (share > 0)


def test_seeds() -> None:
    assert draws(30, 1.0, seed=5) == draws(30, 1.0, seed=5)
    assert draws(30, 1.0, seed=5) != draws(30, 1.0, seed=6)
    assert draws(30, 1.0, seed=None) != draws(30, 1.0, seed=None)


def test_rows_are_independent() -> None:
    """A seeded request draws the same beside others."""
    alone = draws(20, 1.0, seed=5)
    drawing, other = request(1.0, seed=5), request(1.0, 0.9, seed=None)
    together = [sample(LOGITS.repeat(3, 1), [other, drawing, request(0.0)]) for _ in range(20)]
    assert [tokens[1] for tokens in together] == alone
    assert {tokens[2] for tokens in together} == {0}
