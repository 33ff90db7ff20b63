"""What the gateways have booked on each worker: this one's bookings, and the sums that the others reported.

This gateway's counters move by bookings only: made before the pick is returned, closed in `finally`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RECENT_SECONDS: Final = 2.0
"""How long it is known when a booking was made: as long as a worker's report counts."""


@dataclass(slots=True)
class Booked:
    """Sums over one worker's open bookings, as of now: they move with the bookings."""

    requests: int = 0
    pending_tokens: int = 0


NOTHING: Final = Booked()
"""Of a worker without any; shared, so never to be changed."""


class Reservations:
    """Bookings by worker. Bounded by the requests in flight and by what others report: a worker's entries go with its
    last booking."""

    def __init__(self) -> None:
        self._own: dict[str, Booked] = {}
        self._everywhere: dict[str, Booked] = {}
        # This gateway's bookings on a worker, oldest first: those of the last RECENT_SECONDS and some older ones.
        self._recent: dict[str, deque[Booking]] = {}
        self._changed: set[str] = set()
        self._on_change: Callable[[], None] | None = None

    @property
    def own(self) -> dict[str, Booked]:
        """This gateway's bookings, of the workers that have any."""
        return self._own

    @property
    def all(self) -> dict[str, Booked]:
        """This gateway's bookings and the others', of the workers that have any."""
        return self._everywhere

    def of(self, worker: str) -> Booked:
        """This gateway's bookings."""
        return self._own.get(worker, NOTHING)

    def everywhere(self, worker: str) -> Booked:
        """This gateway's bookings and the others'."""
        return self._everywhere.get(worker, NOTHING)

    def since(self, worker: str, at: float) -> Booked:
        """Those of this gateway's open bookings that were made after `at`."""
        booked = Booked()
        for booking in reversed(self._recent.get(worker, ())):
            if booking.at <= at:
                break
            if booking.open:
                booked.requests += 1
                booked.pending_tokens += booking.pending_tokens
        return booked

    @property
    def workers(self) -> frozenset[str]:
        """Workers with open bookings of this gateway."""
        return frozenset(self._own)

    def book(self, worker: str, prefill_tokens: int, now: float = 0.0) -> Booking:
        """Book one request with this much prefill to compute."""
        booking = Booking(self, worker, prefill_tokens, now)
        self.move(worker, 1, prefill_tokens)
        recent = self._recent.setdefault(worker, deque())
        while recent and recent[0].at < now - RECENT_SECONDS:
            recent.popleft()
        recent.append(booking)
        return booking

    def move(self, worker: str, requests: int, tokens: int) -> None:
        """Add to this gateway's sums; for bookings alone."""
        if _add(self._own, worker, requests, tokens):
            self._recent.pop(worker, None)
        _add(self._everywhere, worker, requests, tokens)
        if self._on_change is not None:
            if not self._changed:
                self._on_change()
            self._changed.add(worker)

    def move_others(self, worker: str, requests: int, tokens: int) -> None:
        """Add to the sums of the other gateways."""
        _add(self._everywhere, worker, requests, tokens)

    # --- what is reported to others ----------------------------------------------------------------------------------

    def watch(self, on_change: Callable[[], None]) -> None:
        """Note from now on which workers' sums change; `on_change` is called at the first change after `take_changed`.

        Whoever watches must take, which is what bounds the set.
        """
        self._on_change = on_change

    @property
    def changed(self) -> bool:
        return bool(self._changed)

    def take_changed(self, limit: int) -> list[str]:
        """At most so many of the workers whose sums have changed since they were last taken."""
        if len(self._changed) <= limit:
            taken, self._changed = list(self._changed), set()
            return taken
        return [self._changed.pop() for _ in range(limit)]


def _add(sums: dict[str, Booked], worker: str, requests: int, tokens: int) -> bool:
    """Whether nothing is left of the worker."""
    booked = sums.get(worker)
    if booked is None:
        booked = sums[worker] = Booked()
    booked.requests += requests
    booked.pending_tokens += tokens
    if not booked.requests and not booked.pending_tokens:
        del sums[worker]
        return True
    return False


class Booking:
    """One request's booking on one worker. `first_byte` and `close` may be called any number of times."""

    __slots__ = ("_owner", "at", "open", "pending_tokens", "worker")

    def __init__(self, owner: Reservations, worker: str, prefill_tokens: int, at: float) -> None:
        self.worker = worker
        self.at = at
        self.pending_tokens = prefill_tokens
        self.open = True
        self._owner = owner

    def first_byte(self) -> None:
        """The prefill is done: free its part."""
        if self.pending_tokens:
            self._owner.move(self.worker, 0, -self.pending_tokens)
            self.pending_tokens = 0

    def close(self) -> None:
        """Free whatever is left."""
        if self.open:
            self.open = False
            self._owner.move(self.worker, -1, -self.pending_tokens)
            self.pending_tokens = 0
