"""A gateway's part in what gateways tell each other, without router and network."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from gateway.routing.state.peer_sync import PeerSync
from gateway.routing.state.predictions import Prediction, Predictions
from gateway.routing.state.reservations import Booking, Reservations

incarnations = count(1)


@dataclass
class Gateway:
    """One life of a gateway."""

    name: str
    reservations: Reservations = field(default_factory=Reservations)
    predictions: Predictions = field(default_factory=Predictions)
    wakes: int = 0

    def __post_init__(self) -> None:
        self.peers = PeerSync(self.reservations, self.predictions)
        self.peers.start(name=self.name, incarnation=next(incarnations), wake=self.wake)
        self.bookings: list[Booking] = []
        self.live: list[Prediction] = []

    def wake(self) -> None:
        self.wakes += 1

    def tell(self, now: float, *others: Gateway) -> bytes:
        """Send what there is, to this gateway itself and to the others."""
        packed = self.peers.outgoing(now)
        assert packed is not None
        for each in (self, *others):
            each.peers.receive(packed, now)
        self.peers.published(1 + len(others))
        return packed


def pair(now: float = 0.0) -> tuple[Gateway, Gateway]:
    """Two that have greeted each other."""
    first, second = Gateway("a"), Gateway("b")
    for each in (first, second):
        each.peers.connected()
    first.tell(now, second)
    second.tell(now, first)
    first.tell(now, second)
    assert first.peers.shared(now)
    return first, second
