"""What the other gateways reported: their sums go to `Reservations`, their predictions to `SparsePredictions`.

Sums replace the earlier ones of their sender and are never added to them; so a message that comes twice, late or never
does no harm beyond the sender's next totals. No I/O; the clock is an argument.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from gateway.routing.state.peer_message import MAX_PREDICTIONS, MAX_WORKERS, Kind, PeerMessage, Predicted
from gateway.routing.state.predictions import Prediction
from gateway.routing.state.reservations import Reservations
from gateway.routing.state.sparse import SparsePredictions

FORGET_SECONDS: Final = 3.0
"""A gateway that is silent for so long is dead: it sends its totals every second."""
MAX_SENDERS: Final = 256


class Verdict(StrEnum):
    """What became of a message; a string, so that it is a metric's label as it is."""

    APPLIED = "applied"
    GAP = "gap"
    """Applied, but messages of its sender before it were lost."""
    OWN = "own"
    STALE = "stale"
    """Repeated, out of order, or of a former life of its sender: dropped."""
    REFUSED = "refused"
    """Too many senders, or more workers or predictions of one sender than are kept; the rest was applied."""
    MALFORMED = "malformed"
    """No message, or one of a later version."""


class _Sender:
    __slots__ = ("heard_at", "incarnation", "number", "predictions", "sums")

    def __init__(self, incarnation: int, number: int) -> None:
        self.incarnation = incarnation
        self.number = number
        self.heard_at = 0.0
        self.sums: dict[str, tuple[int, int]] = {}
        self.predictions: dict[int, Prediction] = {}


class PeerView:
    """Bounded by MAX_SENDERS, MAX_WORKERS and MAX_PREDICTIONS of each, and the predictions' own limit of keys."""

    def __init__(self, reservations: Reservations, predictions: SparsePredictions) -> None:
        self._reservations = reservations
        self._predictions = predictions
        self._senders: dict[str, _Sender] = {}

    @property
    def senders(self) -> int:
        """Gateways heard, this one not among them."""
        return len(self._senders)

    def apply(self, message: PeerMessage, now: float) -> Verdict:
        """Take a message of another gateway."""
        sender = self._senders.get(message.sender)
        gap = False
        if sender is not None and sender.incarnation == message.incarnation:
            if message.number <= sender.number:
                return Verdict.STALE
            gap = message.number > sender.number + 1
        elif sender is not None and message.incarnation < sender.incarnation:
            return Verdict.STALE
        else:
            self._forget(message.sender)
            sender = None
        if message.kind is Kind.LEAVE:
            self._forget(message.sender)
            return Verdict.APPLIED
        if sender is None:
            if len(self._senders) >= MAX_SENDERS:
                return Verdict.REFUSED
            sender = self._senders[message.sender] = _Sender(message.incarnation, message.number)
        sender.number, sender.heard_at = message.number, now
        fits = self._take_sums(sender, message)
        fits = self._take_predictions(sender, message) and fits
        return Verdict.REFUSED if not fits else Verdict.GAP if gap else Verdict.APPLIED

    def forget_silent(self, now: float) -> None:
        """Forget who has been silent for too long."""
        for name in [name for name, each in self._senders.items() if now >= each.heard_at + FORGET_SECONDS]:
            self._forget(name)

    def next_silence(self) -> float | None:
        """When somebody will have been silent for too long, if nothing comes; None where nobody was heard."""
        return min((each.heard_at + FORGET_SECONDS for each in self._senders.values()), default=None)

    def clear(self) -> None:
        """Forget everybody."""
        for name in list(self._senders):
            self._forget(name)

    def _take_sums(self, sender: _Sender, message: PeerMessage) -> bool:
        if message.complete:
            for worker in sender.sums.keys() - {worker for worker, _, _ in message.totals}:
                self._set(sender, worker, 0, 0)
        fits = True
        for worker, requests, tokens in message.totals:
            if worker in sender.sums or len(sender.sums) < MAX_WORKERS:
                self._set(sender, worker, requests, tokens)
            else:
                fits = False
        return fits

    def _set(self, sender: _Sender, worker: str, requests: int, tokens: int) -> None:
        former_requests, former_tokens = sender.sums.get(worker, (0, 0))
        if requests or tokens:
            sender.sums[worker] = requests, tokens
        else:
            sender.sums.pop(worker, None)
        self._reservations.move_others(worker, requests - former_requests, tokens - former_tokens)

    def _take_predictions(self, sender: _Sender, message: PeerMessage) -> bool:
        if message.complete:
            for number in sender.predictions.keys() - set(message.live):
                self._predictions.withdraw(sender.predictions.pop(number))
        fits = True
        for reported in message.predicted:
            fits = self._predict(sender, reported) and fits
        for number in message.withdrawn:
            prediction = sender.predictions.pop(number, None)
            if prediction is not None:
                self._predictions.withdraw(prediction)
        return fits

    def _predict(self, sender: _Sender, reported: Predicted) -> bool:
        if reported.number in sender.predictions:
            return True
        if len(sender.predictions) >= MAX_PREDICTIONS:
            return False
        sender.predictions[reported.number] = self._predictions.predict(reported.worker, reported.keys)
        return True

    def _forget(self, name: str) -> None:
        sender = self._senders.pop(name, None)
        if sender is None:
            return
        for worker in list(sender.sums):
            self._set(sender, worker, 0, 0)
        for prediction in sender.predictions.values():
            self._predictions.withdraw(prediction)
