"""One pool's state in flight, told to the other gateways and heard from them.

Each gateway tells how many requests and pending prefill tokens it has on a worker whenever that has changed, at most
every 20 ms, and all of it every second; and every eighth key of prompts with much to compute, so that their siblings
meet on one worker. It hears its own messages too: while they come back the others' sums count, else

    pending(p) = max(own bookings, what the worker reports as waiting + own bookings since that report)

and the requests in flight likewise. Sums older than a second are worse than none. No I/O; the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gateway.routing.state.peer_message import (
    MAX_KEYS,
    MAX_KEYS_A_MESSAGE,
    MAX_PREDICTIONS,
    MAX_WORKERS,
    FlightMessage,
    Kind,
    Predicted,
)
from gateway.routing.state.peer_view import FlightView, Verdict
from gateway.routing.state.predictions import Prediction, Predictions
from gateway.routing.state.reservations import Booked, Reservations
from gateway.routing.state.sparse import SparsePredictions, sparse_keys

CHANGES_SECONDS: Final = 0.02
"""Least time between two messages, among up to MESSAGES_A_SECOND * CHANGES_SECONDS gateways; more tell less often."""
MESSAGES_A_SECOND: Final = 1000
"""That one gateway may get; one takes about 20 us."""
TOTALS_SECONDS: Final = 1.0
ECHO_SECONDS: Final = 1.0
"""A message that has not come back by then will not: sharing is down."""
UNCACHED_TOKENS: Final = 1024
"""Prompts with more than this to compute are told: fewer cost less than a misplaced sibling's prefill is worth."""


class WorkerReport(Protocol):
    """What a worker reports of its load, and when it was measured."""

    @property
    def waiting_tokens(self) -> int: ...

    @property
    def running_requests(self) -> int: ...

    @property
    def waiting_requests(self) -> int: ...

    @property
    def measured_at(self) -> float: ...


class Flight:
    """`outgoing` gives what to send and `receive` takes what comes, this gateway's own messages among it."""

    def __init__(self, reservations: Reservations, predictions: Predictions) -> None:
        self.name = ""
        self.incarnation = 0
        self.predicted = SparsePredictions()
        """What the others expect on workers."""
        self._reservations = reservations
        self._predictions = predictions
        self._view = FlightView(reservations, self.predicted)
        self._number = 0
        self._receivers = 0
        self._full_at = float("-inf")
        self._full_wanted = False
        self._hello = True
        # Whether a message came back since the last (re)connection, and when the oldest was sent that has not. A
        # router for which nobody exchanges messages, as in a replay, is the only one there is.
        self._echoed = True
        self._waiting_since: float | None = None
        self._wake: Callable[[], None] = _nobody
        # Predictions of this gateway that the others were told, or will be: at most MAX_PREDICTIONS.
        self._told: dict[Prediction, int] = {}
        self._predictions_told = 0
        self._to_tell: dict[int, Predicted] = {}
        self._withdrawn: list[int] = []

    # --- routing -----------------------------------------------------------------------------------------------------

    def shared(self, now: float) -> bool:
        """Whether the sums of the other gateways can be trusted."""
        return self._echoed and (self._waiting_since is None or now - self._waiting_since <= ECHO_SECONDS)

    @property
    def gateways(self) -> int:
        """Other gateways heard."""
        return self._view.senders

    @property
    def alone(self) -> bool:
        """Whether nobody else listens."""
        return self._receivers <= 1 and not self._view.senders

    def without_others(self, worker: str, report: WorkerReport) -> Booked:
        """What counts as booked on a worker with a fresh report while sharing is down."""
        own = self._reservations.of(worker)
        requests, tokens = report.running_requests + report.waiting_requests, report.waiting_tokens
        if own.requests:
            since = self._reservations.since(worker, report.measured_at)
            requests, tokens = requests + since.requests, tokens + since.pending_tokens
        if own.requests >= requests and own.pending_tokens >= tokens:
            return own
        return Booked(max(own.requests, requests), max(own.pending_tokens, tokens))

    def routed(self, prediction: Prediction, matched_blocks: int, uncached_tokens: float) -> None:
        """A prompt was routed; tell what its sparse keys are if it has much to compute."""
        if uncached_tokens <= UNCACHED_TOKENS or self.alone or not self._echoed or len(self._told) >= MAX_PREDICTIONS:
            return
        keys = sparse_keys(prediction.keys, matched_blocks, MAX_KEYS)
        if keys:
            self._predictions_told += 1
            self._told[prediction] = self._predictions_told
            self._to_tell[self._predictions_told] = Predicted(self._predictions_told, prediction.worker, keys)

    def _withdraw(self, prediction: Prediction) -> None:
        """A prediction of this gateway no longer stands."""
        number = self._told.pop(prediction, None)
        if number is not None and self._to_tell.pop(number, None) is None:
            self._withdrawn.append(number)
            self._wake_up()

    # --- sending -----------------------------------------------------------------------------------------------------

    def start(self, *, name: str, incarnation: int, wake: Callable[[], None]) -> None:
        """Note changes from now on. `name`: this gateway's, the same in its next life; `incarnation`: larger in its
        next life, below 2**64; `wake` is called when there is something to send before `next_at`."""
        self.name, self.incarnation = name, incarnation
        self._echoed = False
        self._wake = wake
        self._reservations.watch(self._wake_up)
        self._predictions.on_withdrawn = self._withdraw

    @property
    def pause(self) -> float:
        """Seconds between two messages, at least."""
        return max(CHANGES_SECONDS, (self._view.senders + 1) / MESSAGES_A_SECOND)

    def next_at(self) -> float:
        """When `outgoing` is to be asked again at the latest."""
        silence = self._view.next_silence()
        totals = self._full_at + TOTALS_SECONDS
        return totals if silence is None else min(totals, silence)

    def outgoing(self, now: float) -> bytes | None:
        """The message to send, if any; say `published` or `failed` after it."""
        self._predictions.expire(now)
        self._view.forget_silent(now)
        if self._hello:
            kind = Kind.HELLO
        elif self._full_wanted or now >= self._full_at + TOTALS_SECONDS:
            kind = Kind.TOTALS
        elif self.alone or not (self._reservations.changed or self._to_tell or self._withdrawn):
            return None
        else:
            kind = Kind.CHANGES
        return self._message(kind, now)

    def leaving(self, now: float) -> bytes:
        """The last message."""
        return self._message(Kind.LEAVE, now)

    def published(self, receivers: int) -> None:
        """The server took the message, and passed it to so many."""
        self._receivers = receivers
        if self._reservations.changed:
            self._wake_up()

    def failed(self) -> None:
        """The server did not take the message."""
        self._hello = True
        self._echoed = False

    def _message(self, kind: Kind, now: float) -> bytes:
        self._number += 1
        changed = self._reservations.take_changed(MAX_WORKERS)
        withdrawn, self._withdrawn = self._withdrawn, []
        standing: list[int] = []
        if kind is not Kind.CHANGES:
            changed = list(self._reservations.workers)[:MAX_WORKERS]
            standing, withdrawn = list(self._told.values()), []
            self._full_at, self._full_wanted, self._hello = now, False, False
        totals = []
        for worker in changed:
            booked = self._reservations.of(worker)
            totals.append((worker, booked.requests, booked.pending_tokens))
        predicted, keys = [], 0
        while self._to_tell and keys < MAX_KEYS_A_MESSAGE:
            predicted.append(self._to_tell.pop(next(iter(self._to_tell))))
            keys += len(predicted[-1].keys)
        if self._waiting_since is None:
            self._waiting_since = now
        message = FlightMessage(self.name, self.incarnation, self._number, kind, totals, predicted, withdrawn, standing)
        return message.encode()

    def _wake_up(self) -> None:
        if not self.alone:
            self._wake()

    # --- receiving ---------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """Messages are listened to from now on: greet the others, and ask for their totals."""
        self._hello = True
        self._waiting_since = None
        self._wake()

    def disconnected(self) -> None:
        """Messages are no longer listened to."""
        self._echoed = False
        self._waiting_since = None
        self._view.clear()

    def receive(self, packed: bytes, now: float) -> Verdict:
        """Take a message, whoever sent it."""
        try:
            message = FlightMessage.decode(packed)
        except (ValueError, TypeError):
            return Verdict.MALFORMED
        if message.sender == self.name:
            return self._receive_own(message, now)
        alone = self.alone
        verdict = self._view.apply(message, now)
        if verdict is not Verdict.STALE and (alone or message.kind is Kind.HELLO):
            self._full_wanted = True
            self._wake()
        return verdict

    def _receive_own(self, message: FlightMessage, now: float) -> Verdict:
        if message.incarnation == self.incarnation:
            self._echoed = True
            self._waiting_since = None if message.number >= self._number else now
            return Verdict.OWN
        if message.incarnation > self.incarnation:
            # Two gateways with one name would each replace what the other told. The older one gives way.
            self.name = f"{self.name[:200]}#{self.incarnation:x}"
            self._hello = True
        return Verdict.STALE


def _nobody() -> None:
    """Nobody sends: a router of its own, as in a replay."""
