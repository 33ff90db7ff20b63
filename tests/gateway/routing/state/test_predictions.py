"""Predicted entries against a naive twin: a list of live predictions."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.routing.state.predictions import AFTER_FIRST_BYTE_SECONDS, Prediction, Predictions


def test_a_prediction_matches_until_two_seconds_after_its_first_byte() -> None:
    predictions = Predictions()
    prediction = predictions.predict("w", [1, 2, 3])
    predictions.expire(1e9)
    assert predictions.match([1, 2, 9]) == {"w": 2}
    predictions.first_byte(prediction, 10.0)
    predictions.expire(11.9)
    assert predictions.match([1]) == {"w": 1}
    predictions.expire(12.0)
    assert predictions.match([1]) == {}
    assert predictions.keys == 0


def test_two_predictions_of_one_worker_are_withdrawn_one_by_one() -> None:
    predictions = Predictions()
    first, second = predictions.predict("w", [1, 2]), predictions.predict("w", [1])
    predictions.withdraw(first)
    assert predictions.match([1, 2]) == {"w": 1}
    predictions.withdraw(second)
    predictions.withdraw(second)
    assert predictions.match([1]) == {}


def test_past_the_bound_the_oldest_go() -> None:
    predictions = Predictions(key_limit=5)
    for number in range(4):
        predictions.predict("w", [number * 10, number * 10 + 1])
    assert predictions.keys == 4
    assert predictions.match([0]) == {}
    assert predictions.match([30, 31]) == {"w": 2}
    predictions.predict("w", range(100, 110))
    assert predictions.keys == 0


class PredictionsMachine(RuleBasedStateMachine):
    # Prompts of two families that part after two blocks: a key names all blocks before it.
    keys = st.tuples(st.sampled_from(((0, 1, 2, 3, 4), (0, 1, 12, 13))), st.integers(1, 5)).map(
        lambda drawn: list(drawn[0][: drawn[1]])
    )

    def __init__(self) -> None:
        super().__init__()
        self.predictions = Predictions(key_limit=12)
        self.live: list[tuple[Prediction, float]] = []
        self.now = 0.0

    @rule(worker=st.sampled_from("abc"), keys=keys)
    def predict(self, worker: str, keys: list[int]) -> None:
        self.live.append((self.predictions.predict(worker, keys), float("inf")))
        while sum(len(prediction.keys) for prediction, _ in self.live) > 12:
            self.live.pop(0)

    @rule(data=st.data())
    def first_byte(self, data: st.DataObject) -> None:
        if self.live:
            position = data.draw(st.integers(0, len(self.live) - 1))
            prediction, until = self.live[position]
            self.predictions.first_byte(prediction, self.now)
            self.live[position] = (prediction, min(until, self.now + AFTER_FIRST_BYTE_SECONDS))

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if self.live:
            prediction, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
            self.predictions.withdraw(prediction)

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.predictions.expire(self.now)
        self.live = [(prediction, until) for prediction, until in self.live if until > self.now]

    @invariant()
    def equals_the_naive_twin(self) -> None:
        held = {worker: set() for worker in "abc"}
        for prediction, _ in self.live:
            held[prediction.worker].update(prediction.keys)
        for asked in ([0, 1, 2, 3, 4], [0, 1, 12, 13], [0, 1, 2, 33], [44]):
            expected = {}
            for worker, keys in held.items():
                depth = next((position for position, key in enumerate(asked) if key not in keys), len(asked))
                if depth:
                    expected[worker] = depth
            assert self.predictions.match(asked) == expected
        assert self.predictions.keys == sum(len(prediction.keys) for prediction, _ in self.live)


TestPredictionsMachine = PredictionsMachine.TestCase
TestPredictionsMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
