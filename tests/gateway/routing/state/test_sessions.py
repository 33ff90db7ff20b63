"""Sessions as soft hints: they decide between workers that cost nearly the same, and never against load."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.outcome import Outcome
from gateway.prompts.keyer import Prompt
from gateway.routing.candidates import Constraints
from gateway.routing.policies.facts import CandidateFacts, RequestFacts
from gateway.routing.policies.registry import POLICIES
from gateway.routing.routed_request import PoolAssignment, RoutedRequest
from gateway.routing.state import sessions as affinity
from gateway.routing.state.sessions import (
    NEAR,
    NEAR_WITHOUT_KEYS,
    SessionOutcome,
    Sessions,
    prefer_session_worker,
    session_key,
)
from tests.gateway.routing.support import NAMES, Pool, prompt
from warmroute.config.pool import Weights

UNSIZED = Prompt(0, [])
MINE = session_key("tenant", "mine")


def assign(pool: Pool, asked: Prompt | None, session: int = MINE, **wishes) -> PoolAssignment:
    assignment = RoutedRequest(pool.router, asked, Constraints(session=session, **wishes)).assign(frozenset())
    assert assignment is not None
    return assignment


def once(pool: Pool, asked: Prompt | None, session: int = MINE, **wishes) -> str:
    """One request from its pick to its end."""
    assignment = assign(pool, asked, session, **wishes)
    assignment.first_byte()
    assignment.close(Outcome.COMPLETED)
    pool.now += 5
    return assignment.worker_id


@pytest.mark.parametrize(
    "asked", [UNSIZED, None, Prompt(5000, []), prompt(32)], ids=["unsized", "none", "long", "short"]
)
def test_a_session_stays_where_it_was_among_equals_and_others_spread(asked: Prompt | None) -> None:
    pool = Pool()
    worker = once(pool, asked)
    assert {once(pool, asked) for _ in range(20)} == {worker}
    assert {once(pool, asked, affinity.NO_SESSION) for _ in range(60)} == set(NAMES)


def test_it_goes_elsewhere_when_its_worker_is_busy_and_stays_there() -> None:
    pool = Pool()
    worker = once(pool, UNSIZED)
    held = [assign(pool, UNSIZED, affinity.NO_SESSION, only=worker) for _ in range(4)]
    away = once(pool, UNSIZED)
    assert away != worker
    for assignment in held:
        assignment.close(Outcome.COMPLETED)
    assert once(pool, UNSIZED) == away
    counts = {
        outcome: pool.metric("warmroute_gateway_session_requests_total", pool="p", outcome=outcome)
        for outcome in SessionOutcome
    }
    assert counts == {SessionOutcome.NEW: 1, SessionOutcome.MOVED: 1, SessionOutcome.STAYED: 1}


def test_one_request_in_flight_does_not_drive_a_session_away_whose_prompts_are_unknown() -> None:
    pool = Pool()
    worker = once(pool, UNSIZED)
    held = assign(pool, UNSIZED, affinity.NO_SESSION, only=worker)
    assert once(pool, UNSIZED) == worker
    held.close(Outcome.COMPLETED)


def test_what_a_worker_holds_counts_for_more_than_where_the_session_was() -> None:
    pool = Pool()
    worker = once(pool, UNSIZED)
    holder = next(name for name in NAMES if name != worker)
    asked = prompt(640)
    pool.hold(holder, asked.keys)
    assert once(pool, asked) == holder


def test_a_worker_that_is_gone_or_failed_is_not_preferred() -> None:
    pool = Pool()
    worker = once(pool, UNSIZED)
    pool.router.census.workers.get(worker).checked(0, healthy=False, refused=True)
    assert once(pool, UNSIZED) != worker


def test_equal_names_of_two_tenants_are_two_sessions() -> None:
    assert session_key("a", "x") != session_key("b", "x")
    assert session_key("a", "bx") != session_key("ab", "x")
    assert session_key("", "\udce9") not in {affinity.NO_SESSION, session_key("", "e")}
    pool = Pool()
    workers = {tenant: once(pool, UNSIZED, session_key(tenant, "x")) for tenant in "abcdefgh"}
    assert len(set(workers.values())) > 1
    assert all(once(pool, UNSIZED, session_key(tenant, "x")) == worker for tenant, worker in workers.items())


def test_other_policies_do_as_they_say() -> None:
    pool = Pool(policy="round_robin")
    assert {once(pool, UNSIZED) for _ in range(4)} == set(NAMES)
    pool = Pool(policy="consistent_hash")
    workers = {session_key("", str(number)): once(pool, UNSIZED, session_key("", str(number))) for number in range(20)}
    assert set(workers.values()) == set(NAMES)
    assert all(once(pool, UNSIZED, session) == worker for session, worker in workers.items())


def test_sessions_are_bounded_in_number_and_time() -> None:
    sessions = Sessions(most=3)
    for number in range(1, 6):
        assert sessions.routed(number, f"w{number}", now=number) is SessionOutcome.NEW
    assert len(sessions) == 3
    assert [sessions.worker_of(number, 6.0) for number in range(1, 6)] == [None, None, "w3", "w4", "w5"]
    assert sessions.routed(3, "w3", 10.0) is SessionOutcome.STAYED  # now the last to go
    assert sessions.routed(9, "w9", 11.0) is SessionOutcome.NEW
    assert sessions.worker_of(3, 11.0) == "w3"
    assert sessions.worker_of(4, 11.0) is None
    late = 11.0 + affinity.REMEMBERED_SECONDS
    assert sessions.worker_of(9, late) is None
    assert sessions.routed(3, "w1", late) is SessionOutcome.NEW
    assert len(sessions) == 1


@given(
    st.lists(
        st.builds(
            CandidateFacts,
            worker=st.sampled_from(NAMES),
            matched_tokens=st.integers(0, 4000),
            reserved_tokens=st.integers(0, 100_000),
            in_flight=st.integers(0, 50),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 4000),
    st.booleans(),
    st.integers(0, 7),
)
def test_it_never_costs_more_than_the_bound(
    workers: list[CandidateFacts], tokens: int, keyed: bool, position: int
) -> None:
    last = position % len(workers)
    decision = POLICIES["warm"].choose(RequestFacts(1, tokens), workers, Weights(), Random(1))
    best, winner = decision.terms[decision.winner].cost, decision.winner
    uids = [str(place) for place in range(len(workers))]
    prefer_session_worker(decision, uids, uids[last], keyed=keyed, sized=tokens > 0)
    assert decision.winner in {last, winner}
    cost = decision.terms[decision.winner].cost
    if tokens:
        assert cost <= best * (1 + (NEAR if keyed else NEAR_WITHOUT_KEYS))
    else:
        # In requests: a quarter more, and one.
        requests = sum(worker.in_flight for worker in workers)
        pending = sum(worker.reserved_tokens for worker in workers)
        assert cost <= best * (1 + NEAR_WITHOUT_KEYS) + (max(1.0, pending / requests) if requests else 0)
