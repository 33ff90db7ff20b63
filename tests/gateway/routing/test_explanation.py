"""An explanation is the decision that the next request would get, with all that went into it, and leaves no trace."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.outcome import Outcome
from gateway.routing.candidates import NO_CONSTRAINTS, Constraints
from gateway.routing.census.targets import Target
from gateway.routing.explanation import RoutingView, WorkerView, explain_routing
from gateway.routing.policies.facts import PrefillRate
from gateway.routing.router import PoolRouter, Trace
from tests.gateway.routing.support import NAMES, Pool, prompt


def views(view: RoutingView) -> dict[str, WorkerView]:
    return {each.worker: each for each in view.workers}


def state(pool: Pool) -> tuple[Any, ...]:
    """All that a request changes."""
    router = pool.router
    return (
        router.sequence,
        router.state.retry_budget.balance,
        {
            name: (router.state.reservations.of(name).requests, router.state.reservations.of(name).pending_tokens)
            for name in NAMES
        },
        router.state.predictions.keys,
        router.state.approximate.keys,
        router.random.getstate(),
        list(pool.registry.collect()),
    )


def rate(router: PoolRouter, name: str, learned: PrefillRate) -> None:
    router.state.rates.learned[name] = learned


def test_each_tier_and_each_term() -> None:
    pool = Pool()
    whole = prompt(640)
    pool.hold("a", whole.keys[:4])
    pool.index.mirror.add(pool.slots, "host", whole.keys[4:6])
    pool.router.state.predictions.predict("b", whole.keys[:8])
    pool.hold("c", [], publishes_events=False)
    pool.router.state.approximate.computed("c", whole.keys[:2])
    pool.report("a", 500, kv_use=0.25)
    pool.router.state.reservations.book("d", 70)
    view = explain_routing(pool.router, whole)
    workers = views(view)
    match = {
        name: (each.device_tokens, each.host_tokens, each.approximate_tokens, each.predicted_tokens)
        for name, each in ((name, worker.match) for name, worker in workers.items())
    }
    assert match == {"a": (256, 128, 0, 0), "b": (0, 0, 0, 512), "c": (0, 0, 128, 0), "d": (0, 0, 0, 0)}
    assert [workers[name].match.matched_tokens for name in NAMES] == [384, 512, 128, 0]
    load = workers["a"].load
    assert (load.waiting_tokens, load.kv_use, load.in_flight, load.reserved_tokens) == (500, 0.25, 0, 0)
    assert workers["b"].load.waiting_tokens is None
    assert (workers["d"].load.in_flight, workers["d"].load.reserved_tokens) == (1, 70)
    assert view.bookings == "all gateways"
    weights = view.weights
    for worker in workers.values():
        terms = worker.terms
        assert terms is not None
        price = 1 + terms.eviction + terms.queued + weights["w"] * terms.in_flight
        work = price * terms.uncached_tokens
        assert terms.cost == pytest.approx(terms.pending_tokens + work + terms.decode + terms.memory)
    # Who does not report counts as the median of those that do.
    assert [workers[name].terms.pending_tokens for name in NAMES] == [500, 500, 500, 500]
    # What c evicts cannot be seen: it counts as dear.
    assert [each.worker for each in view.workers] == ["b", "a", "d", "c"]
    assert [workers[name].terms.eviction for name in NAMES] == [0.25, 0.25, 3.0, 0.25]
    assert (view.winner.worker, view.winner.tied, view.winner.next_best) == ("b", 1, "a")
    assert view.winner.margin == pytest.approx(workers["a"].terms.cost - workers["b"].terms.cost)
    assert orjson.loads(orjson.dumps(view))["winner"]["worker"] == "b"


def test_nothing_is_booked_numbered_drawn_or_counted() -> None:
    pool = Pool()
    whole = prompt(640)
    assigned = pool.assign(whole)
    before = state(pool)
    for asked in (whole, prompt(6400, 5000), None):
        assert explain_routing(pool.router, asked).winner is not None
    assert state(pool) == before
    assigned.close(Outcome.COMPLETED)


@pytest.mark.parametrize("policy", ["round_robin", "consistent_hash", "least_requests", "warm"])
def test_the_winner_is_the_next_requests(policy: str) -> None:
    pool = Pool(policy=policy)
    for number in range(8):
        asked = prompt(640, 1000 * number)
        view = explain_routing(pool.router, asked)
        assigned = pool.assign(asked)
        assert view.policy == policy
        if view.winner.tied == 1:
            assert assigned.worker_id == view.winner.worker
        else:
            costs = {each.worker: each.terms.cost for each in view.workers}
            assert costs[assigned.worker_id] == view.winner.cost


@given(st.data())
def test_costs_are_those_of_the_decision(data: st.DataObject) -> None:
    pool = Pool()
    asked = prompt(640)
    for name in NAMES:
        pool.hold(name, asked.keys[: data.draw(st.integers(0, 10))])
        pool.router.state.reservations.book(name, data.draw(st.integers(0, 9000)))
        if data.draw(st.booleans()):
            pool.report(name, data.draw(st.integers(0, 9000)), kv_use=data.draw(st.floats(0, 1)))
        if data.draw(st.booleans()):
            rate(pool.router, name, PrefillRate(data.draw(st.floats(1e-5, 1e-3)), 0.01))
    view = explain_routing(pool.router, asked)
    choice = pool.router.choose(asked)
    costs = {each.worker: each.terms.cost for each in view.workers}
    assert costs == {term.worker: pytest.approx(term.cost, abs=1e-6) for term in choice.decision.terms}
    assert view.unit == choice.decision.unit
    assert [each.terms.cost for each in view.workers] == sorted(costs.values())
    if view.winner.tied == 1:
        assert view.winner.worker == choice.worker.name


def test_every_filter_says_whom_it_took_out() -> None:
    pool = Pool()
    workers = {worker.name: worker for worker in pool.router.census.workers.all}
    workers["a"].eject(pool.now)
    workers["b"].checked(pool.now, healthy=False, refused=True)
    view = views(explain_routing(pool.router, prompt(640)))
    assert {name: view[name].removed_by for name in NAMES} == {"a": "ejected", "b": "unhealthy", "c": None, "d": None}
    assert (view["a"].terms, view["a"].estimate_seconds, view["a"].state) == (None, None, "ejected")
    pool.hold("c", [], adapters=("lora",))
    view = views(explain_routing(pool.router, prompt(640), Constraints(adapter="lora")))
    assert {name: view[name].removed_by for name in NAMES} == {
        "a": "adapter not loaded",
        "b": "adapter not loaded",
        "c": None,
        "d": "adapter not loaded",
    }
    view = views(explain_routing(pool.router, prompt(640), Constraints(only="d")))
    assert {name for name in NAMES if view[name].removed_by == "pinned to another"} == {"a", "b", "c"}
    # The holder's match is told although it is out.
    pool.hold("a", prompt(640).keys)
    assert views(explain_routing(pool.router, prompt(640)))["a"].match.matched_tokens == 624


def test_a_slow_start_takes_part_in_some_draws() -> None:
    pool = Pool(("a", "b"))
    pool.now = 1e9
    pool.router.census.workers.get("a").warm_at = pool.now + 9.999
    seen = {views(explain_routing(pool.router, None))["a"].removed_by for _ in range(200)}
    assert seen == {None, "slow start"}


def test_excluded_workers_are_named_too() -> None:
    pool = Pool()
    trace = Trace()
    pool.router.choose(None, frozenset({"a"}), NO_CONSTRAINTS, trace)
    assert trace.filtered == {"a": "excluded"}


def test_late_and_unknown_workers_are_shown_as_such() -> None:
    pool = Pool()
    pool.index.late = frozenset({"a"})
    pool.targets(
        [*[worker.target for worker in pool.router.census.workers.all], Target("new", "10.0.0.9", 1, worker_id="new")]
    )
    view = views(explain_routing(pool.router, prompt(640)))
    assert (view["a"].index, view["b"].index, view["new"].index) == ("late", "current", "none")


def test_the_estimate_is_queue_and_prompt_at_the_workers_rate() -> None:
    pool = Pool(cost="tokens")
    rate(pool.router, "a", PrefillRate(0.001, 0.05, 1e-4))
    pool.router.state.reservations.book("a", 2000)
    view = explain_routing(pool.router, prompt(1000))
    workers = views(view)
    assert workers["a"].estimate_seconds == pytest.approx(2.0 + 0.05 + 1.0 * (1 + 1e-4 * 500))
    assert workers["b"].estimate_seconds is None
    assert view.unit == "tokens"


def test_without_workers_there_is_no_winner() -> None:
    view = explain_routing(Pool(()).router, prompt(640))
    assert (view.winner, view.unit, view.candidates, view.workers) == (None, None, 0, ())
