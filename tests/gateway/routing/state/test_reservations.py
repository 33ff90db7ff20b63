"""Bookings: after all requests end, every counter is exactly zero."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.state.reservations import NOTHING, Booked, Reservations


def test_first_byte_frees_the_prefill_and_close_the_rest() -> None:
    reservations = Reservations()
    booking = reservations.book("w", 100)
    assert reservations.of("w") == Booked(1, 100)
    booking.first_byte()
    assert reservations.of("w") == Booked(1, 0)
    booking.close()
    assert reservations.of("w") == NOTHING
    assert reservations.workers == frozenset()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.lists(st.booleans(), max_size=4)), max_size=20))
def test_any_order_of_calls_ends_at_zero(requests: list[tuple[str, int, list[bool]]]) -> None:
    reservations = Reservations()
    bookings = [(reservations.book(worker, tokens), calls) for worker, tokens, calls in requests]
    for booking, calls in bookings:
        for is_close in calls:
            booking.close() if is_close else booking.first_byte()
            assert reservations.of(booking.worker).pending_tokens >= 0
            assert reservations.of(booking.worker).requests >= 0
    for booking, _ in bookings:
        booking.close()
    assert reservations.workers == frozenset()
