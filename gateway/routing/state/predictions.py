"""Predicted entries: blocks that a worker will hold because a prompt was just routed to it.

They bridge the time until the engine reports the blocks, so that a burst of requests with one new prefix stays
together. They are kept beside the confirmed index and never mixed into it. The clock is an argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

AFTER_FIRST_BYTE_SECONDS: Final = 2.0
DEFAULT_KEY_LIMIT: Final = 500_000


class Prediction:
    """The keys that one routed prompt will leave on one worker."""

    __slots__ = ("keys", "worker")

    def __init__(self, worker: str, keys: Sequence[int]) -> None:
        self.worker = worker
        self.keys = keys


class Predictions:
    """All live predictions of a pool. At most `key_limit` keys; past it the oldest predictions go first."""

    def __init__(self, *, key_limit: int = DEFAULT_KEY_LIMIT) -> None:
        self.key_limit = key_limit
        self.on_withdrawn: Callable[[Prediction], None] | None = None
        """Called with every prediction that is no longer live, for whatever reason."""
        self._holders: dict[int, dict[str, int]] = {}
        # In order of prediction; ended ones are dropped when they come to the front.
        self._order: dict[int, Prediction] = {}
        self._numbers: dict[Prediction, int] = {}
        self._expiry: list[tuple[float, int]] = []
        self._count = count()
        self._keys = 0

    @property
    def keys(self) -> int:
        """Keys of all live predictions, repeats included."""
        return self._keys

    def predict(self, worker: str, keys: Sequence[int]) -> Prediction:
        """Expect a prompt's keys, all of them, on the worker until `first_byte` plus two seconds, or `withdraw`."""
        prediction = Prediction(worker, keys)
        number = next(self._count)
        self._order[number] = prediction
        self._numbers[prediction] = number
        self._keys += len(keys)
        for key in keys:
            holders = self._holders.setdefault(key, {})
            holders[worker] = holders.get(worker, 0) + 1
        while self._keys > self.key_limit:
            self.withdraw(next(iter(self._order.values())))
        return prediction

    def first_byte(self, prediction: Prediction, now: float) -> None:
        """The blocks are computed: the engine's own report is due within two seconds of `now`."""
        number = self._numbers.get(prediction)
        if number is not None:
            heapq.heappush(self._expiry, (now + AFTER_FIRST_BYTE_SECONDS, number))

    def withdraw(self, prediction: Prediction) -> None:
        """The request failed or the time is over: expect nothing more."""
        number = self._numbers.pop(prediction, None)
        if number is None:
            return
        if self.on_withdrawn is not None:
            self.on_withdrawn(prediction)
        del self._order[number]
        self._keys -= len(prediction.keys)
        worker = prediction.worker
        for key in prediction.keys:
            holders = self._holders[key]
            if holders[worker] > 1:
                holders[worker] -= 1
            elif len(holders) > 1:
                del holders[worker]
            else:
                del self._holders[key]

    def expire(self, now: float) -> None:
        """Withdraw what is past its time."""
        while self._expiry and self._expiry[0][0] <= now:
            _, number = heapq.heappop(self._expiry)
            prediction = self._order.get(number)
            if prediction is not None:
                self.withdraw(prediction)

    def match(self, keys: Sequence[int]) -> dict[str, int]:
        """For every worker that is expected to hold at least the first block: how many leading blocks.

        A key names all blocks before it too, and predictions are of whole prompts: who is expected to hold a block is
        expected to hold all before it. So from block to block holders only leave.
        """
        depths: dict[str, int] = {}
        former: Mapping[str, int] = {}
        depth = 0
        for key in keys:
            holders = self._holders.get(key)
            if holders is None:
                break
            if len(holders) != len(former):
                for worker in former:
                    if worker not in holders:
                        depths[worker] = depth
                former = holders
            depth += 1
        for worker in former:
            depths[worker] = depth
        return depths
