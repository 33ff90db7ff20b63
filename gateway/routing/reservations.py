"""What this gateway has booked on each worker.

Counters move by bookings only: made before the pick is returned, closed in `finally`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class Booked:
    """Sums over one worker's open bookings, as of now: they move with the bookings."""

    requests: int = 0
    pending_tokens: int = 0


NOTHING: Final = Booked()
"""Of a worker without any; nobody changes it."""


class Reservations:
    """Bookings by worker. Bounded by the requests in flight: a worker's entry goes with its last booking."""

    def __init__(self) -> None:
        self._booked: dict[str, Booked] = {}

    def of(self, worker: str) -> Booked:
        return self._booked.get(worker, NOTHING)

    @property
    def workers(self) -> frozenset[str]:
        """Workers with open bookings."""
        return frozenset(self._booked)

    def book(self, worker: str, prefill_tokens: int) -> Booking:
        """Book one request with this much prefill to compute."""
        self._move(worker, 1, prefill_tokens)
        return Booking(self, worker, prefill_tokens)

    def _move(self, worker: str, requests: int, tokens: int) -> None:
        booked = self._booked.get(worker)
        if booked is None:
            booked = self._booked[worker] = Booked()
        booked.requests += requests
        booked.pending_tokens += tokens
        if not booked.requests and not booked.pending_tokens:
            del self._booked[worker]


class Booking:
    """One request's booking on one worker. `first_byte` and `close` may be called any number of times."""

    __slots__ = ("_open", "_owner", "_pending", "worker")

    def __init__(self, owner: Reservations, worker: str, prefill_tokens: int) -> None:
        self.worker = worker
        self._owner = owner
        self._pending = prefill_tokens
        self._open = True

    def first_byte(self) -> None:
        """The prefill is done: free its part."""
        if self._pending:
            self._owner._move(self.worker, 0, -self._pending)  # noqa: SLF001 - the two are one module's matter
            self._pending = 0

    def close(self) -> None:
        """Free whatever is left."""
        if self._open:
            self._open = False
            self._owner._move(self.worker, -1, -self._pending)  # noqa: SLF001
            self._pending = 0
