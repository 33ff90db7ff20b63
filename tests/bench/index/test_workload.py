"""Inputs are seeded, and shaped as the figures claim."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from bench.index.workload import HOLDERS, QUICK, keys_of_workers


def test_every_block_has_four_holders_and_every_worker_its_number_of_keys() -> None:
    held = keys_of_workers(1, QUICK)
    assert len(held) == QUICK.workers
    assert all(len(set(keys)) == len(keys) == QUICK.keys_a_worker for keys in held)
    assert set(Counter(chain.from_iterable(held)).values()) == {HOLDERS}


def test_a_seed_gives_the_same_keys_and_another_gives_others() -> None:
    assert keys_of_workers(1, QUICK) == keys_of_workers(1, QUICK)
    assert not set(keys_of_workers(1, QUICK)[0]) & set(keys_of_workers(2, QUICK)[0])
