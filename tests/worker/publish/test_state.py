"""The publisher without its wire: whatever is lost on the way, the ledger ends with what the worker holds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from worker.publish.index_blocks import Changes
from worker.publish.state import CHUNK_KEYS, DELTA_KEYS, FIRST_CHUNK_KEYS, DeltaToSend, PublishState, Resume


def test_changes_that_cancel_are_never_sent() -> None:
    state = PublishState(1)
    state.apply("device", Changes(added={1}), 0.0)
    state.apply("device", Changes(removed={1}), 0.0)
    assert state.unpublished == 0
    assert state.next_delta() is None


def test_one_delta_is_in_flight_and_changes_merge_behind_it() -> None:
    state = PublishState(1)
    list(state.snapshot(0.0))
    state.apply("device", Changes(added={1}), 0.0)
    first = state.next_delta()
    assert first is not None
    state.apply("device", Changes(added={2}, removed={1}), 0.0)
    assert state.next_delta() is None
    assert state.acknowledged(first.seq)
    second = state.next_delta()
    assert second is not None
    assert (second.added["device"], second.removed["device"]) == ([2], [1])


def test_large_changes_are_split() -> None:
    state = PublishState(1)
    state.apply("device", Changes(added=set(range(CHUNK_KEYS + 5))), 0.0)
    delta = state.next_delta()
    assert delta is not None
    assert len(delta.added["device"]) == DELTA_KEYS
    assert state.unpublished == CHUNK_KEYS + 5
    assert state.acknowledged(delta.seq)
    assert state.unpublished == CHUNK_KEYS + 5 - DELTA_KEYS
    chunks = list(state.snapshot(0.0))
    assert [len(chunk.held["device"]) for chunk in chunks] == [FIRST_CHUNK_KEYS, CHUNK_KEYS + 5 - FIRST_CHUNK_KEYS]
    assert [chunk.last for chunk in chunks] == [False, True]
    assert state.unpublished == CHUNK_KEYS + 5
    assert state.acknowledged(chunks[-1].seq)
    assert state.unpublished == 0


def test_an_empty_snapshot_is_one_chunk() -> None:
    (chunk,) = PublishState(1).snapshot(0.0)
    assert (chunk.chunk, chunk.last, chunk.held) == (0, True, {})


class PublishMachine(RuleBasedStateMachine):
    """A worker, a ledger that applies what reaches it, and a wire that loses messages and answers."""

    keys = st.sets(st.integers(0, 8), max_size=4)

    def __init__(self) -> None:
        super().__init__()
        self.state = PublishState(1)
        self.held: set[int] = set()
        self.ledger: tuple[int, int, set[int]] = (0, 0, set())

    @rule(added=keys, removed=keys)
    def change(self, added: set[int], removed: set[int]) -> None:
        self.held = (self.held - removed) | (added - removed)
        self.state.apply("device", Changes(added=added - removed, removed=removed), 0.0)

    @rule()
    def reset(self) -> None:
        self.state.reset(self.state.epoch + 1, 0.0)
        self.held = set()

    @rule()
    def renew(self) -> None:
        """The ledger refused the epoch."""
        self.state.renew(self.state.epoch + 1, 0.0)

    @rule()
    def ledger_wiped(self) -> None:
        self.ledger = (0, 0, set())

    @rule(arrives=st.booleans(), answered=st.booleans())
    def delta(self, arrives: bool, answered: bool) -> None:
        if self.state.seq == 0:
            return
        delta = self.state.next_delta()
        if delta is not None and arrives:
            self.deliver(delta)
            if answered and self.ledger[:2] == (self.state.epoch, delta.seq):
                assert self.state.acknowledged(delta.seq)

    def deliver(self, delta: DeltaToSend) -> None:
        epoch, seq, keys = self.ledger
        if epoch == self.state.epoch and seq == delta.seq - 1:
            keys = (keys - set(delta.removed.get("device", []))) | set(delta.added.get("device", []))
            self.ledger = (epoch, delta.seq, keys)

    @rule(chunks_that_arrive=st.integers(0, 2))
    def reconnect(self, chunks_that_arrive: int) -> None:
        epoch, seq, _ = self.ledger
        known = seq if epoch == self.state.epoch else 0
        match self.state.resume(ledger_seq=known, snapshot_wanted=known == 0):
            case Resume.RESEND:
                assert self.state.in_flight is not None
                self.deliver(self.state.in_flight)
            case Resume.SNAPSHOT:
                chunks = list(self.state.snapshot(0.0))
                if chunks_that_arrive >= len(chunks):
                    held = {key for chunk in chunks for key in chunk.held.get("device", [])}
                    self.ledger = (self.state.epoch, chunks[0].seq, held)

    @invariant()
    def the_worker_knows_what_it_holds(self) -> None:
        assert self.state.held("device") == self.held

    @invariant()
    def a_ledger_at_the_last_state_differs_by_what_is_pending(self) -> None:
        epoch, seq, keys = self.ledger
        if epoch == self.state.epoch and seq == self.state.seq and seq:
            pending = self.state._pending["device"]
            assert (keys - pending.removed) | pending.added == self.held

    def teardown(self) -> None:
        """Once the wire holds, everything arrives."""
        for _ in range(4):
            self.reconnect(2)
            self.delta(arrives=True, answered=True)
        assert self.ledger[2] == self.held


TestPublishMachine = PublishMachine.TestCase
TestPublishMachine.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_the_age_is_that_of_the_oldest_change_not_acknowledged() -> None:
    state = PublishState(1)
    assert state.unpublished_seconds(5.0) == 0.0
    state.apply("device", Changes(added={1}), 10.0)
    chunks = list(state.snapshot(11.0))
    state.apply("device", Changes(added={2}), 12.0)
    assert (state.unpublished, state.unpublished_seconds(15.0)) == (2, 5.0)
    assert state.acknowledged(chunks[-1].seq)
    assert (state.unpublished, state.unpublished_seconds(15.0)) == (1, 3.0)
    delta = state.next_delta()
    assert delta is not None
    state.apply("device", Changes(added={3}), 14.0)
    assert (state.unpublished, state.unpublished_seconds(15.0)) == (2, 3.0)
    assert state.acknowledged(delta.seq)
    assert (state.unpublished, state.unpublished_seconds(15.0)) == (1, 1.0)
    state.apply("device", Changes(removed={3}), 15.0)
    assert (state.unpublished, state.unpublished_seconds(16.0)) == (0, 0.0)


def test_what_a_wiped_ledger_lost_is_unpublished_from_the_snapshot_on() -> None:
    state = PublishState(1)
    state.apply("device", Changes(added={1, 2}), 0.0)
    (chunk,) = state.snapshot(0.0)
    assert state.acknowledged(chunk.seq)
    assert state.resume(ledger_seq=0, snapshot_wanted=True) is Resume.SNAPSHOT
    list(state.snapshot(100.0))
    assert (state.unpublished, state.unpublished_seconds(101.0)) == (2, 1.0)
    # The last chunk arrived and its answer did not.
    assert state.resume(ledger_seq=state.seq, snapshot_wanted=False) is Resume.CONTINUE
    assert (state.unpublished, state.unpublished_seconds(102.0)) == (0, 0.0)


def test_a_reset_is_a_change_until_a_snapshot_carries_it() -> None:
    state = PublishState(1)
    state.apply("device", Changes(added={1}), 0.0)
    (chunk,) = state.snapshot(0.0)
    assert state.acknowledged(chunk.seq)
    state.reset(2, 10.0)
    assert (state.unpublished, state.unpublished_seconds(13.0)) == (0, 3.0)
    (chunk,) = state.snapshot(13.0)
    assert state.acknowledged(chunk.seq)
    assert state.unpublished_seconds(14.0) == 0.0
