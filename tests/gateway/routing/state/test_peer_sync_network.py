"""Whatever the network does to messages, totals make everybody know the truth."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.routing.state.peer_sync import TOTALS_SECONDS
from gateway.routing.state.peer_view import Verdict
from gateway.routing.state.reservations import Booked
from tests.gateway.routing.peers import Gateway


class AnyNetwork(RuleBasedStateMachine):
    """Three gateways; messages are lost, repeated and reordered at will. Once all have told their totals, all know the
    truth."""

    names = st.sampled_from("abc")
    workers = st.sampled_from(("v", "w"))

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.gateways = {name: Gateway(name) for name in "abc"}
        self.sent: list[bytes] = []
        for each in self.gateways.values():
            each.peers.connected()

    @rule(name=names, worker=workers, tokens=st.integers(0, 9))
    def book(self, name: str, worker: str, tokens: int) -> None:
        gateway = self.gateways[name]
        gateway.bookings.append(gateway.reservations.book(worker, tokens, self.now))

    @rule(name=names, worker=workers, first=st.integers(0, 2))
    def predict(self, name: str, worker: str, first: int) -> None:
        gateway = self.gateways[name]
        prediction = gateway.predictions.predict(worker, [*range(first, 16 + first)])
        gateway.live.append(prediction)
        gateway.peers.routed(prediction, 0, 2000)

    @rule(name=names, data=st.data(), answered=st.booleans())
    def move(self, name: str, data: st.DataObject, answered: bool) -> None:
        gateway = self.gateways[name]
        if gateway.bookings:
            booking = gateway.bookings[data.draw(st.integers(0, len(gateway.bookings) - 1))]
            booking.first_byte() if answered else booking.close()
        if gateway.live:
            prediction = gateway.live[data.draw(st.integers(0, len(gateway.live) - 1))]
            if answered:
                gateway.predictions.first_byte(prediction, self.now)
            else:
                gateway.predictions.withdraw(prediction)

    @rule(name=names)
    def send(self, name: str) -> None:
        packed = self.gateways[name].peers.outgoing(self.now)
        if packed is not None:
            self.sent.append(packed)

    @rule(name=names, data=st.data())
    def deliver(self, name: str, data: st.DataObject) -> None:
        if self.sent:
            packed = self.sent[data.draw(st.integers(0, len(self.sent) - 1))]
            assert self.gateways[name].peers.receive(packed, self.now) is not Verdict.MALFORMED

    @rule(name=names)
    def restart(self, name: str) -> None:
        self.gateways[name] = Gateway(name)
        self.gateways[name].peers.connected()

    @rule(name=names)
    def reconnect(self, name: str) -> None:
        self.gateways[name].peers.disconnected()
        self.gateways[name].peers.connected()

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def all_tell(self) -> None:
        self.now += TOTALS_SECONDS
        told = [gateway.peers.outgoing(self.now) for gateway in self.gateways.values()]
        for packed in told:
            assert packed is not None
            self.sent.append(packed)
            for gateway in self.gateways.values():
                gateway.peers.receive(packed, self.now)
        for worker in ("v", "w"):
            own = [gateway.reservations.of(worker) for gateway in self.gateways.values()]
            truth = Booked(sum(each.requests for each in own), sum(each.pending_tokens for each in own))
            for gateway in self.gateways.values():
                assert gateway.reservations.everywhere(worker) == truth
        for gateway in self.gateways.values():
            others = [other for other in self.gateways.values() if other is not gateway]
            assert gateway.peers.predicted.keys <= sum(2 * other.peers.reported for other in others)
            assert gateway.peers.shared(self.now)

    @invariant()
    def nothing_is_negative(self) -> None:
        for gateway in self.gateways.values():
            for worker in ("v", "w"):
                own, everywhere = gateway.reservations.of(worker), gateway.reservations.everywhere(worker)
                assert 0 <= own.requests <= everywhere.requests
                assert 0 <= own.pending_tokens <= everywhere.pending_tokens

    def teardown(self) -> None:
        for gateway in self.gateways.values():
            for booking in gateway.bookings:
                booking.close()
            for prediction in gateway.live:
                gateway.predictions.withdraw(prediction)
        self.all_tell()
        for gateway in self.gateways.values():
            assert gateway.reservations.own == gateway.reservations.all == {}
            assert gateway.reservations._recent == {}
            assert (gateway.peers.predicted.keys, gateway.predictions.keys) == (0, 0)


TestAnyNetwork = AnyNetwork.TestCase
TestAnyNetwork.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
