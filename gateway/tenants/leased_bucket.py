"""A part of a tenant's rate, taken from the shared bucket ahead of its use; and the bucket that stands in for it.

Both are token buckets: they hold at most one minute's worth, and refill evenly. In any t seconds no more than
`limit * (1 + t / 60)` units can be used. Pure: the clock is an argument, in seconds; it may
be any that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MINUTE: Final = 60.0
REFUSAL_SECONDS: Final = 0.25
"""How long a refusal by Redis is repeated without asking again."""
IDLE_SECONDS: Final = 1.0
"""After so long without use the units left in a leased bucket go back."""
DEBT_MINUTES: Final = 10
"""What one gateway may owe, in minutes' worth; more is forgiven, as in the script."""


class Bucket:
    """Kept by one gateway alone, while Redis is away."""

    __slots__ = ("_at", "_balance", "capacity")

    def __init__(self, capacity: float, balance: float, now: float) -> None:
        self.capacity = capacity
        self._balance = min(capacity, balance)
        self._at = now

    def balance(self, now: float) -> float:
        """Units that can be used now; negative where more was used than there was."""
        if now > self._at:
            self._balance = min(self.capacity, self._balance + (now - self._at) * self.capacity / MINUTE)
            self._at = now
        return self._balance

    def use(self, amount: int, now: float) -> None:
        """Use so many units, or give back as many where it is negative."""
        self._balance = min(self.capacity, self.balance(now) - amount)

    def resize(self, capacity: float) -> None:
        """Another capacity from now on."""
        self.capacity, self._balance = capacity, min(self._balance, capacity)


@dataclass(frozen=True, slots=True)
class RefillRequest:
    """What one call to Redis says of one bucket."""

    limit: int
    spent: int
    """Comes off whatever there is; negative gives back."""
    least: int
    """With less there than this nothing is granted."""
    wanted: int
    need: int
    """The smallest demand that waits; 0 for none."""
    local_mark: int


NO_REFILL: Final = RefillRequest(0, 0, 0, 0, 0, 0)


class LeasedBucket:
    """Units of one kind, requests or tokens, that this gateway may use without asking."""

    __slots__ = (
        "_known",
        "_known_at",
        "_local",
        "_local_used",
        "_ordered_at",
        "_refused",
        "_refused_until",
        "_used",
        "held",
        "limit",
    )

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.held = 0
        self._used = 0
        self._known = float(limit)
        self._known_at = now
        self._ordered_at = now
        self._refused = 0
        self._refused_until = now
        self._local: Bucket | None = None
        self._local_used = 0

    # --- use ---------------------------------------------------------------------------------------------------------

    def has(self, amount: int, now: float) -> bool:
        """Whether so much can be used without asking."""
        if self._local is None:
            return self.held >= amount
        # More than this gateway's whole share is let through when that is full, and owed.
        return self._local.balance(now) >= min(amount, self._local.capacity)

    def use(self, amount: int, now: float) -> None:
        """Use so much, or give back as much where it is negative; the rest of a debt is paid with the next order."""
        if amount > 0:
            self._used += amount
        if self._local is None:
            self.held = max(self.held - amount, -DEBT_MINUTES * self.limit)
        else:
            self._local.use(amount, now)
            self._local_used += amount

    def refused(self, amount: int, now: float) -> bool:
        """Whether Redis has just refused as much; by this gateway alone, whether it has not got it."""
        if self._local is not None:
            return not self.has(amount, now)
        return now < self._refused_until and amount >= self._refused and self.held < amount

    # --- what the headers say ----------------------------------------------------------------------------------------

    def remaining(self, now: float) -> int:
        """Units left to the tenant, as far as is known here."""
        if self._local is not None:
            return max(0, int(self._local.balance(now)))
        return max(0, min(self.limit, int(self._shared(now)) + self.held))

    def seconds_until(self, amount: int, now: float) -> float:
        """When so much will have come back, if nobody uses any."""
        if self._local is not None:
            wanted = min(amount, self._local.capacity)
            return max(0.0, (wanted - self._local.balance(now)) * MINUTE / self._local.capacity)
        return max(0.0, (amount - self.held - self._shared(now)) * MINUTE / self.limit)

    def outlook(self, now: float) -> tuple[int, float]:
        """`remaining`, and `seconds_until` the whole limit, in one."""
        if self._local is not None:
            return self.remaining(now), self.seconds_until(self.limit, now)
        limit, left = self.limit, self._shared(now)
        remaining, missing = int(left) + self.held, limit - self.held - left
        return min(limit, remaining) if remaining > 0 else 0, missing * MINUTE / limit if missing > 0 else 0.0

    def _shared(self, now: float) -> float:
        limit = self.limit
        shared = self._known + (now - self._known_at) * limit / MINUTE
        return shared if shared < limit else float(limit)

    # --- orders ------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Units to hold ahead of use: twice what was used since the last order, at most one second's worth."""
        return min(2 * self._used, self.limit // 60)

    def due(self, now: float) -> bool:
        """Whether to call without anybody waiting: half used up, in debt, or idle."""
        if self._local is not None:
            return True
        if self.held < 0 or self.held * 2 < self.size:
            return True
        return self.held > 0 and not self._used and now - self._ordered_at >= IDLE_SECONDS

    def refill_request(self, need: int, waiting: int, now: float, *, leaving: bool = False) -> RefillRequest:
        """What to ask for; `need` is the smallest demand that waits, `waiting` the sum of all.

        The caller brings the answer to `granted` or `failed` before it orders again.
        """
        size, self._used = 0 if leaving else self.size, 0
        wanted_in_hand = min(self.limit, waiting + size)
        if self._local is not None:
            # What came back meanwhile has come back in Redis too.
            owed = max(0, min(self._local_used, int(self._local.capacity - self._local.balance(now))))
            return RefillRequest(self.limit, owed, need, wanted_in_hand, need, self._local_used)
        spent = 0
        idle = leaving or (not waiting and not size and now - self._ordered_at >= IDLE_SECONDS)
        if self.held < 0 or idle:
            spent, self.held = -self.held, 0
        self._ordered_at = now
        least = max(0, need - self.held)
        return RefillRequest(self.limit, spent, least, max(0, wanted_in_hand - self.held), need, 0)

    def granted(self, refill_request: RefillRequest, amount: int, left: int, now: float) -> None:
        """Redis answered: so much is ours, so much is left there."""
        if self._local is not None:
            self.held, self._local = refill_request.local_mark - self._local_used, None
            self._local_used = 0
        self.held += amount
        self._known, self._known_at = float(left), now
        if refill_request.need and refill_request.least and not amount:
            missing = (refill_request.least - left) * MINUTE / self.limit
            self._refused, self._refused_until = refill_request.need, now + min(REFUSAL_SECONDS, missing)

    def failed(self, refill_request: RefillRequest) -> None:
        """Redis did not answer. What was given back stays given; what is owed is owed again."""
        if self._local is None and refill_request.spent > 0:
            self.held -= refill_request.spent

    def alone(self, gateways: int, now: float) -> None:
        """Go on without Redis, with an even share of what was left."""
        if self._local is None:
            balance = self._shared(now) / gateways + self.held
            self._local, self._local_used, self.held = Bucket(self.limit / gateways, balance, now), 0, 0

    def resize(self, limit: int) -> None:
        """The tenant's limit has changed; this gateway's share changes with it."""
        if self._local is not None:
            self._local.resize(self._local.capacity * limit / self.limit)
        self._known = min(self._known, float(limit)) if limit < self.limit else self._known + limit - self.limit
        self.held, self.limit = min(self.held, limit), limit
