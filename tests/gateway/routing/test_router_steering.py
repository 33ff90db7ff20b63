"""What a pool's router does over time and with adapters: who is asked first, and where a hot prefix goes."""

from __future__ import annotations

from gateway.http.outcome import Outcome
from gateway.prompts.keyer import Prompt
from gateway.routing.candidates import Constraints
from gateway.routing.census.targets import Target
from gateway.routing.routed_request import PoolAssignment, RoutedRequest
from indexer.keys import prompt_keys
from tests.gateway.routing.replicas import Worker
from tests.gateway.routing.support import FINGERPRINT, NAMES, Pool, prompt


def test_an_adapter_is_asked_of_who_has_it_then_of_who_has_said_nothing() -> None:
    pool = Pool()
    pool.targets([Target(name, "10.0.0.1", 8000 + number, worker_id=name) for number, name in enumerate("abcdx")])
    pool.hold("b", [], adapters=("lora-a",))

    def asked(exclude: frozenset[str] = frozenset()) -> set[str]:
        picks = [
            RoutedRequest(pool.router, prompt(64), Constraints(adapter="lora-a")).assign(exclude) for _ in range(20)
        ]
        return {pick.worker_id for pick in picks if pick is not None}

    assert asked() == {"b"}
    assert asked(frozenset("b")) == {"x"}
    pool.router.census.workers.get("b").checked(0, healthy=False, refused=True)
    assert asked() == {"x"}
    pool.router.census.workers.get("x").checked(0, healthy=False, refused=True)
    # Those that say they lack it would answer that there is no such model.
    assert asked() == {"b"}


def test_a_hot_prefix_gets_more_holders_while_its_holders_are_loaded_and_no_more_than_that() -> None:
    """Each worker prefills 10,000 tokens a second. A tenant's prefix of 6,000 is held by one worker; every request
    brings 600 tokens of its own."""

    def holders(requests_a_second: float, policy: str = "warm") -> tuple[int, float, float]:
        """After a minute: workers that hold the prefix, the share of its tokens that was found, and the mean wait."""
        pool, engines, shared = Pool(policy=policy), {name: Worker(10_000.0) for name in NAMES}, list(range(6016))
        keys = prompt_keys(shared, FINGERPRINT)
        pool.hold("a", keys)
        engines["a"].held.update(keys)
        found, waited, number = 0, 0.0, 0
        replies: list[tuple[float, PoolAssignment]] = []
        while pool.now < 160:
            number += 1
            pool.now += 1 / requests_a_second
            for first_byte_at, assignment in [reply for reply in replies if reply[0] <= pool.now]:
                replies.remove((first_byte_at, assignment))
                assignment.first_byte()
                assignment.close(Outcome.COMPLETED)
                # What the engine publishes: the shared part, as far as it has it.
                pool.hold(assignment.worker_id, keys)
            asked = Prompt(6616, prompt_keys([*shared, *range(number * 1000, number * 1000 + 600)], FINGERPRINT))
            assignment = pool.assign(asked)
            tokens, first_byte_at = engines[assignment.worker_id].take(asked, pool.now)
            found += min(tokens, 6016)
            waited += first_byte_at - pool.now
            replies.append((first_byte_at, assignment))
        for _, assignment in replies:
            assignment.close(Outcome.CLIENT_GONE)
        assert pool.router.state.reservations.workers == frozenset()
        return sum(keys[-1] in engine.held for engine in engines.values()), found / (6016 * number), waited / number

    few, few_found, _ = holders(5)  # 3,000 tokens a second: a third of what one worker computes
    many, many_found, many_wait = holders(40)  # 24,000: what two and a half compute
    load_blind, _, endless_wait = holders(40, "prefix_only")
    assert few == 1
    assert many >= 3
    assert few_found == 1
    assert many_found > 0.98
    assert many_wait < 1
    assert load_blind == 1
    assert endless_wait > 10
