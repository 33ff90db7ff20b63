"""One pool's bookings and predictions, kept in step between gateways.

Each gateway reports how many requests and pending prefill tokens it has on a worker whenever that has changed, at most
every 20 ms, and all of it every second; and every eighth key of prompts with much to compute, so that prompts that
begin alike meet on one worker. It receives its own messages too: while they come back the others' sums count, else

    pending(p) = max(own bookings, what the worker reports as waiting + own bookings since that report)

and the requests in flight likewise: sums older than a second mislead more than none. No I/O; the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gateway.routing.state.peer_message import (
    MAX_KEYS,
    MAX_KEYS_A_MESSAGE,
    MAX_PREDICTIONS,
    MAX_WORKERS,
    Kind,
    PeerMessage,
    Predicted,
)
from gateway.routing.state.peer_view import PeerView, Verdict
from gateway.routing.state.predictions import Prediction, Predictions
from gateway.routing.state.reservations import Booked, Reservations
from gateway.routing.state.sparse import SparsePredictions, sparse_keys

CHANGES_SECONDS: Final = 0.02
"""Least time between two messages, among up to MESSAGES_A_SECOND * CHANGES_SECONDS gateways; more send less often."""
MESSAGES_A_SECOND: Final = 1000
"""That one gateway may get; one takes about 20 us."""
TOTALS_SECONDS: Final = 1.0
ECHO_SECONDS: Final = 1.0
"""A message that has not come back by then will not: sharing is down."""
UNCACHED_TOKENS: Final = 1024
"""Prompts with more than this to compute are reported: fewer cost less than a misplaced sibling's prefill is worth."""


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


class PeerSync:
    """`outgoing` gives the message to send; `receive` takes those that come, this gateway's own among them."""

    def __init__(self, reservations: Reservations, predictions: Predictions) -> None:
        self.name = ""
        self.incarnation = 0
        self.predicted = SparsePredictions()
        """What the others expect on workers."""
        self._reservations = reservations
        self._predictions = predictions
        self._view = PeerView(reservations, self.predicted)
        self._number = 0
        self._receivers = 0
        self._full_at = float("-inf")
        self._full_wanted = False
        self._hello = True
        # Whether a message came back since the last connection was made, and when the oldest was sent that did not.
        # Without an exchange, as in a replay of one gateway, there is no other gateway.
        self._echoed = True
        self._waiting_since: float | None = None
        self._wake: Callable[[], None] = _ignore
        # This gateway's live predictions that are reported to the others, with their numbers: at most MAX_PREDICTIONS.
        self._reported: dict[Prediction, int] = {}
        self._last_prediction = 0
        self._to_report: dict[int, Predicted] = {}
        self._withdrawn: list[int] = []

    # --- routing -----------------------------------------------------------------------------------------------------

    def shared(self, now: float) -> bool:
        """Whether the sums of the other gateways can be trusted."""
        return self._echoed and (self._waiting_since is None or now - self._waiting_since <= ECHO_SECONDS)

    @property
    def gateways(self) -> int:
        """Other gateways that are known."""
        return self._view.senders

    @property
    def reported(self) -> int:
        """This gateway's live predictions that are reported to the others."""
        return len(self._reported)

    @property
    def alone(self) -> bool:
        """Whether no other gateway listens."""
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
        """A prompt was routed: report its sparse keys if it has much to compute."""
        if (
            uncached_tokens <= UNCACHED_TOKENS
            or self.alone
            or not self._echoed
            or len(self._reported) >= MAX_PREDICTIONS
        ):
            return
        keys = sparse_keys(prediction.keys, matched_blocks, MAX_KEYS)
        if keys:
            self._last_prediction += 1
            self._reported[prediction] = self._last_prediction
            self._to_report[self._last_prediction] = Predicted(self._last_prediction, prediction.worker, keys)

    def _withdraw(self, prediction: Prediction) -> None:
        """A prediction of this gateway is no longer live."""
        number = self._reported.pop(prediction, None)
        if number is not None and self._to_report.pop(number, None) is None:
            self._withdrawn.append(number)
            self._wake_up()

    # --- sending -----------------------------------------------------------------------------------------------------

    def start(self, *, name: str, incarnation: int, wake: Callable[[], None]) -> None:
        """Note changes from now on. `name`: this gateway's, the same after a restart; `incarnation`: larger after a
        restart, below 2**64; `wake` is called when there is something to send before `next_at`."""
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
        elif self.alone or not (self._reservations.changed or self._to_report or self._withdrawn):
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
        live: list[int] = []
        if kind is not Kind.CHANGES:
            changed = list(self._reservations.workers)[:MAX_WORKERS]
            live, withdrawn = list(self._reported.values()), []
            self._full_at, self._full_wanted, self._hello = now, False, False
        totals = []
        for worker in changed:
            booked = self._reservations.of(worker)
            totals.append((worker, booked.requests, booked.pending_tokens))
        predicted, keys = [], 0
        while self._to_report and keys < MAX_KEYS_A_MESSAGE:
            predicted.append(self._to_report.pop(next(iter(self._to_report))))
            keys += len(predicted[-1].keys)
        if self._waiting_since is None:
            self._waiting_since = now
        message = PeerMessage(self.name, self.incarnation, self._number, kind, totals, predicted, withdrawn, live)
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
            message = PeerMessage.decode(packed)
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

    def _receive_own(self, message: PeerMessage, now: float) -> Verdict:
        if message.incarnation == self.incarnation:
            self._echoed = True
            self._waiting_since = None if message.number >= self._number else now
            return Verdict.OWN
        if message.incarnation > self.incarnation:
            # Two gateways with one name would each replace the other's sums. The older one takes another name.
            self.name = f"{self.name[:200]}#{self.incarnation:x}"
            self._hello = True
        return Verdict.STALE


def _ignore() -> None:
    """There is no exchange to wake."""
