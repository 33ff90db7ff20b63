"""Routing over several gateways: what they know of each other decides where requests go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from gateway.http.outcome import Outcome
from gateway.prompts.keyer import Prompt
from gateway.routing.census.targets import Target
from gateway.routing.gauges import publish_gauges
from gateway.routing.routed_request import RoutedRequest
from gateway.routing.state.peer_view import FORGET_SECONDS
from gateway.routing.state.reservations import NOTHING, Booked
from indexer.keys import prompt_keys
from tests.gateway.routing.replicas import Replicas, Worker, answer
from tests.gateway.routing.support import FINGERPRINT, NAMES, Pool, prompt

EIGHT = tuple("abcdefgh")


def siblings(number: int) -> Iterator[Prompt]:
    """Prompts that share 6,016 tokens."""
    shared = list(range(6016))
    for each in range(1, number + 1):
        yield Prompt(6080, prompt_keys([*shared, *range(each * 100_000, each * 100_000 + 64)], FINGERPRINT))


def burst(gateways: int, *, shared: bool, requests: int = 64, spacing: float = 0.005, rate: float = 20_000) -> float:
    """One new prompt's siblings over many gateways, within its first prefill: the share of tokens found in caches.
    Where there is room for copies on idle workers they cost nothing; here they do."""
    replicas = Replicas(gateways, EIGHT, shared=shared, weights={"g": 3.0})
    workers = {name: Worker(rate) for name in EIGHT}
    replicas.run(replicas.now + 0.1)
    found = []

    def arrive(position: int, asked: Prompt) -> None:
        assignment = replicas.pools[position % gateways].assign(asked)
        tokens, first_byte_at = workers[assignment.worker_id].take(asked, replicas.now)
        found.append(tokens)
        answer(replicas, assignment, first_byte_at)
        if tokens < 6016:
            replicas.at(first_byte_at + 0.1, lambda: report(assignment.worker_id, asked))

    def report(worker: str, asked: Prompt) -> None:
        for pool in replicas.pools:
            pool.hold(worker, asked.keys)

    start = replicas.now
    for position, asked in enumerate(siblings(requests)):
        replicas.at(start + position * spacing, lambda at=position, what=asked: arrive(at, what))
    replicas.run(start + 60)
    for pool in replicas.pools:
        assert pool.router.state.reservations.workers == frozenset()
        assert pool.router.state.reservations.all == {}
        assert pool.router.state.peers.predicted.keys == 0
    return sum(found) / (6080 * requests)


def test_a_burst_of_one_new_prompt_over_eight_gateways_meets_on_few_workers() -> None:
    one = burst(1, shared=True)
    shared, unshared = burst(8, shared=True), burst(8, shared=False)
    assert shared >= 0.80
    # As good as one gateway, and less than half of the work that is done twice without sharing.
    assert shared >= one - 0.02
    assert 1 - shared < 0.5 * (1 - unshared)


def test_gateways_see_each_others_bookings_and_spread() -> None:
    replicas = Replicas(4)
    replicas.run(replicas.now + 0.1)
    picked = []
    for number, pool in enumerate(replicas.pools):
        picked.append(pool.assign(prompt(32_000, 100_000 * number)))
        replicas.run(replicas.now + 0.1)
    assert {assignment.worker_id for assignment in picked} == set(NAMES)
    for assignment in picked:
        assignment.close(Outcome.COMPLETED)
    replicas.run(replicas.now + 0.1)
    for pool in replicas.pools:
        assert all(pool.router.state.reservations.everywhere(name) == NOTHING for name in NAMES)


def test_identical_prompts_at_one_instant_over_gateways_share_by_load() -> None:
    replicas = Replicas(4)
    replicas.run(replicas.now + 0.1)
    counts: Counter[str] = Counter()
    for number in range(40):
        counts[replicas.pools[number % 4].assign(prompt(64)).worker_id] += 1
        replicas.run(replicas.now + 0.03)
    assert set(counts) == set(NAMES)
    assert max(counts.values()) <= 20


def test_a_killed_gateways_requests_are_forgotten_and_the_others_keep_theirs() -> None:
    replicas = Replicas(2)
    replicas.run(replicas.now + 0.1)
    lives, dies = replicas.pools
    mine = lives.assign(prompt(640))
    theirs = dies.assign(prompt(32_000, 10_000))
    replicas.run(replicas.now + 0.1)
    assert lives.router.state.reservations.everywhere(theirs.worker_id).pending_tokens >= 32_000
    replicas.kill(1)
    replicas.run(replicas.now + FORGET_SECONDS + 0.5)
    assert lives.router.state.peers.gateways == 0
    assert lives.router.state.reservations.everywhere(mine.worker_id) == Booked(1, 640)
    if theirs.worker_id != mine.worker_id:
        assert lives.router.state.reservations.everywhere(theirs.worker_id) == NOTHING
    mine.close(Outcome.COMPLETED)
    assert lives.router.state.reservations.all == {}


def test_after_aborts_retries_and_a_kill_every_counter_is_zero() -> None:
    random = Random(3)
    replicas = Replicas(4)
    replicas.run(replicas.now + 0.1)

    def arrive(position: int, number: int) -> None:
        if position == 3 and replicas.is_dead(3):
            return
        request = RoutedRequest(replicas.pools[position].router, prompt(random.randrange(64, 9000), 10_000 * number))
        tried: set[str] = set()
        while (assignment := request.assign(tried)) is not None:
            if random.random() < 0.7:
                answer(replicas, assignment, replicas.now + random.random(), random.random())
                return
            if random.random() < 0.5:
                # Whoever asked leaves, before the first byte or after it.
                if random.random() < 0.5:
                    assignment.first_byte()
                replicas.at(replicas.now + random.random(), lambda: assignment.close(Outcome.CLIENT_GONE))
                return
            assignment.close(Outcome.UNREACHABLE)
            tried.add(assignment.worker_id)

    start = replicas.now
    for number in range(400):
        replicas.at(start + number * 0.01, lambda n=number: arrive(n % 4, n))
    replicas.run(start + 2)
    assert sum(replicas.pools[0].router.state.reservations.everywhere(name).requests for name in NAMES) > 0
    replicas.kill(3)
    replicas.run(start + 10)
    for pool in replicas.pools[:3]:
        assert pool.router.state.reservations.own == pool.router.state.reservations.all == {}
        assert pool.router.state.peers.predicted.keys == 0
        assert pool.router.state.peers.gateways == 2


def test_a_worker_that_flaps_ends_with_nothing_booked() -> None:
    """Field case: in flight, not ready, ready again, another request, both end; never negative."""
    replicas = Replicas(2)
    replicas.run(replicas.now + 0.1)
    first, second = replicas.pools
    targets = [worker.target for worker in first.router.census.workers.all]
    held = [first.assign(prompt(640, 1000 * number)) for number in range(4)]
    for pool in replicas.pools:
        pool.targets([target for target in targets if target.uid != "a"])
    replicas.run(replicas.now + 0.1)
    assert second.router.state.reservations.everywhere("a") == Booked(1, 640)
    for pool in replicas.pools:
        pool.targets(targets)
    held += [second.assign(prompt(640, 100_000 + 1000 * number)) for number in range(4)]
    replicas.run(replicas.now + 0.1)
    for pool in replicas.pools:
        assert sum(pool.router.state.reservations.everywhere(name).requests for name in NAMES) == 8
    for assignment in held:
        assignment.first_byte()
        assignment.close(Outcome.COMPLETED)
        for pool in replicas.pools:
            assert all(booked.requests >= 0 for booked in pool.router.state.reservations.all.values())
    replicas.run(replicas.now + 0.1)
    for pool in replicas.pools:
        assert pool.router.state.reservations.all == {}


def test_a_dead_workers_counters_go_and_the_others_stay() -> None:
    replicas = Replicas(2)
    replicas.run(replicas.now + 0.1)
    first = replicas.pools[0]
    held = {assignment.worker_id: assignment for assignment in (first.assign(prompt(640, 1000 * n)) for n in range(4))}
    replicas.run(replicas.now + 0.1)
    for pool in replicas.pools:
        pool.targets([Target(name, "10.0.0.1", 8000, worker_id=name) for name in "bcd"])
    held.pop("a").close(Outcome.UNREACHABLE)
    replicas.run(replicas.now + 0.1)
    for pool in replicas.pools:
        assert pool.router.state.reservations.everywhere("a") == NOTHING
        assert all(pool.router.state.reservations.everywhere(name) == Booked(1, 640) for name in "bcd")


def test_without_others_a_reported_queue_counts_and_own_bookings_since() -> None:
    pool = Pool(("a", "b"))
    pool.router.state.peers.start(name="g", incarnation=1, wake=lambda: None)
    assert not pool.router.state.peers.shared(pool.now)
    pool.report("a", 30_000)
    pool.report("b", 0)
    pool.now += 0.01
    picked = [pool.assign(prompt(640, 1000 * number)) for number in range(4)]
    # Others' requests wait on a; ours since the reports come on top of that, on either.
    assert [assignment.worker_id for assignment in picked] == ["b"] * 4
    choice = pool.router.choose(prompt(640, 50_000))
    assert choice is not None
    pending = {terms.worker: terms.pending_tokens for terms in choice.decision.terms}
    assert pending == {"a": 30_000, "b": 4 * 640}
    pool.report("b", 5000)
    pool.now += 0.01
    late = pool.assign(prompt(640, 60_000), exclude=frozenset("a"))
    choice = pool.router.choose(prompt(640, 70_000))
    assert choice is not None
    assert {terms.worker: terms.pending_tokens for terms in choice.decision.terms}["b"] == 5000 + 640
    for assignment in (*picked, late):
        assignment.close(Outcome.COMPLETED)
    assert pool.router.state.reservations.workers == frozenset()


def test_a_router_that_exchanges_nothing_goes_by_its_bookings() -> None:
    pool = Pool(("a",))
    pool.report("a", 100)
    pool.now += 0.01
    held = pool.assign(prompt(640))
    choice = pool.router.choose(prompt(640, 50_000))
    assert choice is not None
    assert choice.terms.pending_tokens == 640
    held.close(Outcome.COMPLETED)


@pytest.mark.parametrize(("age", "unreported"), [(0.0, 0), (60.0, 1)])
def test_one_worker_with_an_old_report_is_served_and_that_is_visible(age: float, unreported: int) -> None:
    pool = Pool(("a",))
    pool.report("a", 10**9, age=age)
    assert pool.assign(prompt(640)).worker_id == "a"
    publish_gauges(pool.router)
    assert pool.metric("warmroute_gateway_unreported_workers", pool="p") == unreported
