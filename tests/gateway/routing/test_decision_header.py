"""The header that tells a decision: ASCII, bounded, and what the decision says."""

from __future__ import annotations

import json

from gateway.http.outcome import Outcome
from gateway.routing.census.targets import Target
from gateway.routing.decision_header import LIMIT_BYTES, NAME, decision_header
from gateway.routing.routed_request import RoutedRequest
from tests.gateway.routing.support import Pool, prompt


def test_it_tells_the_winner_its_terms_and_the_next_best() -> None:
    pool = Pool()
    pool.hold("c", prompt(640).keys)
    choice = pool.router.choose(prompt(640))
    name, value = decision_header(choice, "warm")
    assert name == NAME
    assert json.loads(value) == {
        "worker": "c",
        "policy": "warm",
        "candidates": 4,
        "unit": "tokens",
        "cost": 20.0,
        "next_cost": 800.0,
        "matched_tokens": 624,
        "uncached_tokens": 16.0,
        "pending_tokens": 0.0,
        "in_flight": 0,
        "decode": 0.0,
        "memory": 0.0,
        "slot_wait": 0.0,
        "eviction": 0.25,
        "queued": 0.0,
    }


def test_it_is_ascii_and_bounded_whatever_workers_are_called() -> None:
    pool = Pool(())
    pool.targets([Target("a", "10.0.0.1", 1, name="\U0001f40c\r\n" * 500)])
    _, value = decision_header(pool.router.choose(prompt(640)), "consistent_hash")
    assert len(value) <= LIMIT_BYTES
    assert b"\r" not in value
    assert json.loads(value.decode("ascii"))["next_cost"] is None


def test_it_is_of_the_attempt_that_replied_and_only_where_asked_for() -> None:
    pool = Pool(("a", "b"))
    routed = RoutedRequest(pool.router, prompt(640), explained=True)
    first = routed.assign(frozenset())
    first.close(Outcome.UNREACHABLE)
    second = routed.assign(frozenset({first.worker_id}))
    headers = dict(second.reply_headers)
    assert json.loads(headers[NAME])["worker"] == second.worker_id != first.worker_id
    second.close(Outcome.COMPLETED)
    assert NAME not in dict(pool.assign(prompt(640)).reply_headers)
