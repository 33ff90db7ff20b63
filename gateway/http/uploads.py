"""The bytes of request bodies in this process, from their first one until their reply begins: a bound on all of them,
shared by clients. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from gateway.http.errors import RequestError

COUNTED_BYTES: Final = 16_384
"""Smaller bodies are not counted: those of all connections that there may be are 256 MiB."""
NEWCOMER_SECONDS: Final = 1.0
"""An upload gives way to others only after this, where its client has an older one."""

Reason = Literal["head", "client", "total"]
"""Why a body was not taken: by what its head says, for its client's bound, for that of all."""

_RETRY: Final = ((b"retry-after", b"1"),)


class Holding:
    """What one connection holds."""

    __slots__ = ("arriving", "began_at", "bytes", "client", "give_way")

    def __init__(self, give_way: Callable[[RequestError], None]) -> None:
        """`give_way`: refuse what is still arriving, and tell `Uploads` of it before returning."""
        self.give_way = give_way
        self.client = ""
        """Whose share it is in."""
        self.bytes = 0
        self.arriving = False
        """Whether there is something that can give way: a body that is whole goes on to its worker."""
        self.began_at = 0.0


class _Share:
    """One client's."""

    __slots__ = ("bytes", "holdings")

    def __init__(self) -> None:
        self.bytes = 0
        self.holdings: set[Holding] = set()


class Uploads:
    """All holdings. Where they are too many, the client that holds most gives way, with its slowest upload.

    Bounded: one entry for each connection.
    """

    def __init__(
        self, limit: int, client_limit: int | None = None, on_refusal: Callable[[Reason], None] | None = None
    ) -> None:
        self.limit = limit
        self.client_limit = limit if client_limit is None else client_limit
        self.on_refusal = on_refusal
        self.bytes = 0
        self._shares: dict[str, _Share] = {}

    @property
    def clients(self) -> int:
        """Clients that hold anything."""
        return len(self._shares)

    def hold(self, holding: Holding, client: str, size: int, *, arriving: bool) -> None:
        """The connection holds `size` bytes now, for this client; never refused."""
        if size == holding.bytes and client == holding.client:
            holding.arriving = arriving
            return
        share = self._shares.get(holding.client)
        if share is not None and holding in share.holdings:
            share.bytes -= holding.bytes
            self.bytes -= holding.bytes
            share.holdings.discard(holding)
            if not share.holdings:
                del self._shares[holding.client]
        holding.client, holding.bytes, holding.arriving = client, size, arriving
        if size:
            share = self._shares.get(client)
            if share is None:
                share = self._shares[client] = _Share()
            share.holdings.add(holding)
            share.bytes += size
            self.bytes += size

    def make_room(self, client: str, now: float) -> None:
        """After a holding of this client grew: have uploads give way until the bounds hold, or none is left."""
        while (share := self._shares.get(client)) is not None and share.bytes > self.client_limit:
            slowest = _slowest(share, now)
            if slowest is None:
                break
            message = f"this client's requests hold more than {self.client_limit} bytes here; try again later"
            self._refuse(slowest, RequestError(429, message, "rate_limit_exceeded", headers=_RETRY), "client")
        while self.bytes > self.limit:
            slowest = None
            for share in sorted(self._shares.values(), key=_bytes, reverse=True):
                if (slowest := _slowest(share, now)) is not None:
                    break
            if slowest is None:
                break
            message = "too much is being uploaded at once, and this was the slowest of it; try again later"
            self._refuse(slowest, RequestError(503, message, "overloaded", headers=_RETRY), "total")

    def _refuse(self, holding: Holding, error: RequestError, reason: Reason) -> None:
        self.refused(reason)
        holding.arriving = False
        holding.give_way(error)

    def refused(self, reason: Reason) -> None:
        """Count a body that was not taken."""
        if self.on_refusal is not None:
            self.on_refusal(reason)


def _bytes(share: _Share) -> int:
    return share.bytes


def _slowest(share: _Share, now: float) -> Holding | None:
    """The slowest of the uploads that are not new; of all, where all are."""
    arriving = [holding for holding in share.holdings if holding.arriving]
    old = [holding for holding in arriving if now - holding.began_at >= NEWCOMER_SECONDS]
    return min(old or arriving, key=lambda holding: holding.bytes / max(now - holding.began_at, 1e-3), default=None)
