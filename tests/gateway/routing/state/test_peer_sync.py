"""What gateways tell each other, and what they make of it."""

from __future__ import annotations

from gateway.routing.state.load_report import Report
from gateway.routing.state.peer_message import MAX_PREDICTIONS, MAX_WORKERS, Kind, PeerMessage, Predicted
from gateway.routing.state.peer_sync import ECHO_SECONDS, TOTALS_SECONDS
from gateway.routing.state.peer_view import FORGET_SECONDS, MAX_SENDERS, Verdict
from gateway.routing.state.reservations import NOTHING, Booked
from tests.gateway.routing.peers import Gateway, pair


def test_sums_of_both_count_and_go_to_zero() -> None:
    a, b = pair()
    mine, theirs = a.reservations.book("w", 100, 0.0), b.reservations.book("w", 7, 0.0)
    a.tell(0.1, b)
    b.tell(0.1, a)
    for each in (a, b):
        assert each.reservations.everywhere("w") == Booked(2, 107)
    theirs.first_byte()
    b.tell(0.2, a)
    assert a.reservations.everywhere("w") == Booked(2, 100)
    mine.close()
    theirs.close()
    b.tell(0.3, a)
    assert a.reservations.everywhere("w") == NOTHING


def test_repeated_and_late_messages_are_dropped() -> None:
    a, b = pair()
    booking = b.reservations.book("w", 7)
    old = b.peers.outgoing(0.1)
    booking.close()
    new = b.peers.outgoing(0.2)
    assert old is not None
    assert new is not None
    assert a.peers.receive(new, 0.2) is Verdict.GAP
    assert a.peers.receive(old, 0.2) is Verdict.STALE
    assert a.peers.receive(new, 0.2) is Verdict.STALE
    assert a.reservations.everywhere("w") == NOTHING


def test_a_restarted_gateway_replaces_its_former_life_at_once() -> None:
    a, b = pair()
    b.reservations.book("w", 7)
    late = b.tell(0.1, a)
    again = Gateway("b")
    again.peers.connected()
    again.tell(0.2, a)
    assert a.reservations.everywhere("w") == NOTHING
    assert a.peers.receive(late, 0.3) is Verdict.STALE
    assert a.peers.gateways == 1


def test_a_killed_gateway_is_forgotten_after_three_seconds() -> None:
    a, b = pair()
    b.reservations.book("w", 7)
    prediction = b.predictions.predict("w", list(range(100)))
    b.peers.routed(prediction, 0, 6400)
    b.tell(0.1, a)
    assert a.peers.predicted.match(list(range(100))) == {"w": 96}
    a.tell(0.1 + FORGET_SECONDS - 0.01)
    assert a.reservations.everywhere("w") == Booked(1, 7)
    assert a.peers.next_at() <= 0.1 + FORGET_SECONDS
    a.peers.outgoing(0.1 + FORGET_SECONDS)
    assert a.reservations.everywhere("w") == NOTHING
    assert a.peers.predicted.match(list(range(100))) == {}
    assert a.peers.gateways == 0


def test_a_gateway_that_ends_says_so() -> None:
    a, b = pair()
    b.reservations.book("w", 7)
    b.tell(0.1, a)
    assert a.peers.receive(b.peers.leaving(0.2), 0.2) is Verdict.APPLIED
    assert (a.reservations.everywhere("w"), a.peers.gateways) == (NOTHING, 0)


def test_sharing_is_down_until_the_first_echo_and_a_second_after_the_last() -> None:
    a = Gateway("a")
    assert not a.peers.shared(0.0)
    a.peers.connected()
    packed = a.peers.outgoing(0.0)
    assert packed is not None
    assert not a.peers.shared(0.0)
    a.peers.receive(packed, 0.01)
    assert a.peers.shared(0.5)
    assert a.peers.outgoing(TOTALS_SECONDS) is not None
    assert a.peers.shared(TOTALS_SECONDS + ECHO_SECONDS)
    assert not a.peers.shared(TOTALS_SECONDS + ECHO_SECONDS + 0.01)
    a.tell(TOTALS_SECONDS + ECHO_SECONDS + 1)
    assert a.peers.shared(TOTALS_SECONDS + ECHO_SECONDS + 1)
    a.peers.failed()
    assert not a.peers.shared(TOTALS_SECONDS + ECHO_SECONDS + 1)


def test_what_others_told_goes_with_the_connection_and_comes_back_with_it() -> None:
    a, b = pair()
    b.reservations.book("w", 7)
    b.tell(0.1, a)
    a.peers.disconnected()
    assert (a.reservations.everywhere("w"), a.peers.shared(0.1)) == (NOTHING, False)
    a.peers.connected()
    wakes = b.wakes
    a.tell(0.2, b)
    assert b.wakes > wakes
    b.tell(0.2, a)
    assert a.reservations.everywhere("w") == Booked(1, 7)


def test_alone_it_tells_its_totals_once_a_second_and_wakes_nobody() -> None:
    a = Gateway("a")
    a.peers.connected()
    a.tell(0.0)
    wakes = a.wakes
    booking = a.reservations.book("w", 7)
    prediction = a.predictions.predict("w", list(range(100)))
    a.peers.routed(prediction, 0, 6400)
    assert a.peers.outgoing(0.5) is None
    assert (a.wakes, a.peers.next_at()) == (wakes, TOTALS_SECONDS)
    message = PeerMessage.decode(a.tell(TOTALS_SECONDS))
    assert (message.kind, message.totals, message.predicted) == (Kind.TOTALS, [("w", 1, 7)], [])
    booking.close()
    a.predictions.withdraw(prediction)
    assert a.wakes == wakes


def test_a_change_is_told_once_and_wakes_once() -> None:
    a, _ = pair()
    wakes = a.wakes
    for _ in range(5):
        a.reservations.book("w", 7)
    assert a.wakes == wakes + 1
    packed = a.peers.outgoing(0.1)
    assert packed is not None
    message = PeerMessage.decode(packed)
    assert (message.kind, message.totals) == (Kind.CHANGES, [("w", 5, 35)])
    assert a.peers.outgoing(0.12) is None


def test_what_the_server_did_not_take_is_told_with_the_next_totals() -> None:
    a, _ = pair()
    a.reservations.book("w", 7)
    assert a.peers.outgoing(0.1) is not None
    a.peers.failed()
    again = a.peers.outgoing(0.2)
    assert again is not None
    message = PeerMessage.decode(again)
    assert (message.kind, message.totals) == (Kind.HELLO, [("w", 1, 7)])


def test_a_first_listener_is_told_at_once_what_changed_meanwhile() -> None:
    a = Gateway("a")
    a.peers.connected()
    assert a.peers.outgoing(0.0) is not None
    a.reservations.book("w", 7)
    wakes = a.wakes
    a.peers.published(2)
    assert a.wakes == wakes + 1
    assert a.peers.outgoing(0.02) is not None


def test_many_gateways_tell_less_often() -> None:
    a = Gateway("a")
    assert a.peers.pause == 0.02
    for number in range(63):
        a.peers.receive(PeerMessage(f"g{number}", 1, 1, Kind.TOTALS).encode(), 0.0)
    assert 0.02 < a.peers.pause <= 0.1


def test_without_others_the_workers_reports_and_own_bookings_since_count() -> None:
    a = Gateway("a")
    a.reservations.book("w", 100, 9.0)
    since = a.reservations.book("w", 30, 10.5)
    report = Report(waiting_tokens=500, running_requests=4, waiting_requests=2, kv_cache_usage=0.0, measured_at=10.0)
    assert a.peers.without_others("w", report) == Booked(7, 530)
    since.first_byte()
    assert a.peers.without_others("w", report) == Booked(7, 500)
    since.close()
    assert a.peers.without_others("w", report) == Booked(6, 500)
    idle = Report(0, 0, 0, 0.0, measured_at=10.0)
    assert a.peers.without_others("w", idle) == Booked(1, 100)


def test_the_older_of_two_with_one_name_gives_way() -> None:
    old, new, third = Gateway("x"), Gateway("x"), Gateway("c")
    for each in (old, new, third):
        each.peers.connected()
    old.reservations.book("w", 1)
    new.reservations.book("w", 10)
    old.tell(0.0, new, third)
    new.tell(0.1, old, third)
    assert (old.peers.name != "x", new.peers.name) == (True, "x")
    old.tell(0.2, new, third)
    assert third.reservations.everywhere("w") == Booked(2, 11)
    assert third.peers.gateways == 2


def test_short_prompts_are_not_told_and_failures_are_withdrawn() -> None:
    a, b = pair()
    short = a.predictions.predict("w", list(range(16)))
    a.peers.routed(short, 0, 1024)
    failing = a.predictions.predict("w", list(range(100, 200)))
    a.reservations.book("w", 6400)
    a.peers.routed(failing, 0, 6400)
    message = PeerMessage.decode(a.tell(0.1, b))
    assert [list(each.keys) for each in message.predicted] == [list(range(107, 200, 8))]
    assert b.peers.predicted.match(list(range(100, 200))) == {"w": 96}
    a.predictions.withdraw(failing)
    a.tell(0.2, b)
    assert b.peers.predicted.match(list(range(100, 200))) == {}
    assert b.predictions.match(list(range(100, 200))) == {}


def test_a_prediction_that_ends_before_it_is_told_is_not_told() -> None:
    a, _ = pair()
    prediction = a.predictions.predict("w", list(range(100)))
    a.peers.routed(prediction, 0, 6400)
    a.predictions.withdraw(prediction)
    assert a.peers.outgoing(0.1) is None


def test_predictions_end_two_seconds_after_the_first_byte_for_all() -> None:
    a, b = pair()
    prediction = a.predictions.predict("w", list(range(100)))
    a.peers.routed(prediction, 0, 6400)
    a.tell(0.1, b)
    a.predictions.first_byte(prediction, 0.5)
    for now in (1.3, 2.4):
        a.tell(now, b)
        assert b.peers.predicted.match(list(range(100)))
    a.tell(2.5, b)
    assert b.peers.predicted.keys == 0


def test_bounds_are_kept_and_counted() -> None:
    a = Gateway("a")

    def take(message: PeerMessage) -> Verdict:
        return a.peers.receive(message.encode(), 0.0)

    rows = [(f"w{number}", 1, 1) for number in range(MAX_WORKERS)]
    assert take(PeerMessage("g", 1, 1, Kind.TOTALS, rows)) is Verdict.APPLIED
    assert take(PeerMessage("g", 1, 2, Kind.CHANGES, [("one more", 1, 1)])) is Verdict.REFUSED
    assert a.reservations.everywhere("one more") == NOTHING
    told = [Predicted(number, "w", [number]) for number in range(MAX_PREDICTIONS + 1)]
    assert take(PeerMessage("g", 1, 3, Kind.CHANGES, predicted=told)) is Verdict.REFUSED
    assert a.peers.predicted.keys == MAX_PREDICTIONS
    for number in range(MAX_SENDERS - 1):
        assert take(PeerMessage(f"g{number}", 1, 1, Kind.TOTALS)) is Verdict.APPLIED
    assert take(PeerMessage("too many", 1, 1, Kind.TOTALS)) is Verdict.REFUSED
    assert a.peers.receive(b"\x00", 0.0) is Verdict.MALFORMED
    a.peers.disconnected()
    assert (a.peers.predicted.keys, a.peers.gateways) == (0, 0)


def test_more_changes_than_a_message_takes_follow_in_the_next() -> None:
    a, b = pair()
    workers = MAX_WORKERS + 10
    for number in range(workers):
        a.reservations.book(f"w{number}", 1)
    first, second = a.peers.outgoing(0.1), a.peers.outgoing(0.12)
    assert first is not None
    assert second is not None
    assert len(PeerMessage.decode(first).totals) + len(PeerMessage.decode(second).totals) == workers
    assert b.peers.receive(first, 0.2) is Verdict.APPLIED
