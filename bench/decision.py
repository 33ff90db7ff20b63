"""What a decision costs: `python -m bench decision`.

A prompt of 128 index blocks is matched in the mirror, every worker is priced, and one is picked. All workers hold the
first blocks of every prompt and some hold more, report their load, and have requests booked; half of the prompts are
predicted somewhere. Both forms of the default policy are measured, in tokens and in seconds, and as the baseline the
round-robin policy on the same facts. `measure` is what `bench.routing_live` calls.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import median
from typing import Final

from prometheus_client import CollectorRegistry

from gateway.http.outcome import Outcome
from gateway.process import compiled
from gateway.process.metrics import GatewayMetrics
from gateway.prompts.keyer import Prompt
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import SLOW_START_SECONDS
from gateway.routing.routed_request import RoutedRequest
from gateway.routing.router import PoolRouter
from gateway.routing.state.load_report import Report
from gateway.routing.state.rates import SAMPLES
from indexer.keys import pool_fingerprint
from indexer.layout import WorkerFacts
from indexer.reader.mirror import Mirror
from warmroute.config.pool import PoolConfig
from warmroute.config.setting_types import DEFAULT_INDEX_BLOCK_TOKENS, PolicyName

BLOCKS: Final = 128
SHARED_BLOCKS: Final = 16
"""First blocks of all prompts, held by all workers."""
HOLDERS: Final = 0.1
"""Share of the workers that hold more of a prompt."""
PROMPTS: Final = 64
WORKERS: Final[Mapping[int, int]] = {100: 25, 2000: 5}
"""Numbers of workers, and how many rounds over all prompts are measured with so many."""
_POOL: Final = "bench"
_TOKENIZER: Final = "ab" * 32
_NOW: Final = 1000.0


class _Index:
    def __init__(self) -> None:
        self.mirror = Mirror()
        self.late: frozenset[str] = frozenset()


class _Reports:
    def __init__(self, reports: dict[str, Report]) -> None:
        self._reports = reports

    def of(self, pool: str) -> dict[str, Report]:
        return self._reports


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; the last line is one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench decision", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    figures = measure(parser.parse_args(argv).seed)
    print(f"CPU of a decision, {BLOCKS} blocks, us; {compiled.description()}")
    for name, value in figures.items():
        print(f"{name:<40}{value:>10.1f}")
    print(json.dumps(figures))
    return 0


def measure(seed: int = 1, rounds_by_workers: Mapping[int, int] = WORKERS) -> dict[str, float]:
    """CPU microseconds a decision, by number of workers. Of both forms, the dearer as `decision_N_workers_us`; of the
    mirror's part alone and of round robin; and of a whole request: decision, booking, first byte, end."""
    figures: dict[str, float] = {}
    for workers, rounds in rounds_by_workers.items():
        name = f"decision_{workers}_workers"
        tokens, seconds = _Scene(workers, seed, rounds), _Scene(workers, seed, rounds, rated=True)
        forms = {
            f"{name}_tokens_us": tokens.decision_us("tokens"),
            f"{name}_seconds_us": seconds.decision_us("seconds"),
        }
        figures[f"{name}_us"] = max(forms.values())
        figures |= forms
        figures[f"{name}_round_robin_us"] = _Scene(workers, seed, rounds, policy="round_robin").decision_us("rank")
        figures[f"{name}_match_us"] = tokens.match_us()
        figures[f"request_{workers}_workers_us"] = tokens.request_us()
    return {name: round(value, 2) for name, value in figures.items()}


class _Scene:
    """One pool's router in the midst of work; nothing of it connects anywhere, and its clock stands."""

    def __init__(
        self, workers: int, seed: int, rounds: int, *, policy: PolicyName = "warm", rated: bool = False
    ) -> None:
        random = Random(seed)
        self._rounds = rounds
        shared = [random.getrandbits(64) for _ in range(SHARED_BLOCKS)]
        self._prompts = [
            Prompt(
                BLOCKS * DEFAULT_INDEX_BLOCK_TOKENS + 10,
                shared + [random.getrandbits(64) for _ in range(BLOCKS - SHARED_BLOCKS)],
            )
            for _ in range(PROMPTS)
        ]
        names = [f"worker-{number}" for number in range(workers)]
        self._index = _Index()
        self._hold(names, random)
        reports = {
            name: Report(random.randrange(4000), random.randrange(8), random.randrange(2), random.random() / 2, _NOW)
            for name in names
        }
        self._router = router = PoolRouter(
            PoolConfig(name=_POOL, model=_POOL, policy=policy),
            self._index,
            _Reports(reports),
            GatewayMetrics(CollectorRegistry()),
            clock=lambda: _NOW,
            random=random,
        )
        router.census.use_tokenizer(_TOKENIZER)
        router.census.set_targets(Target(name, "10.0.0.1", number + 1, name) for number, name in enumerate(names))
        for worker in router.census.workers.all:
            worker.checked(_NOW - 2 * SLOW_START_SECONDS, healthy=True)
        if rated:
            self._learn(names, random)
        # Requests in flight everywhere, some of them before their first byte.
        for _ in range(4 * workers):
            booking = router.state.reservations.book(random.choice(names), random.randrange(2000), _NOW)
            if random.random() < 0.7:
                booking.first_byte()
        for prompt in self._prompts[: PROMPTS // 2]:
            router.state.predictions.predict(random.choice(names), prompt.keys)

    def decision_us(self, unit: str) -> float:
        """Of `PoolRouter.choose`. The costs are in this unit."""
        choice = self._router.choose(self._prompts[0])
        if choice is None or choice.decision.unit != unit:
            raise AssertionError(f"costs are not in {unit}: {choice}")
        return self._cost(self._router.choose)

    def match_us(self) -> float:
        """Of the mirror's part of it."""
        return self._cost(lambda prompt: self._index.mirror.match(prompt.keys))

    def request_us(self) -> float:
        """Of all that routing does for a request, with the decision."""

        def serve(prompt: Prompt) -> None:
            assignment = RoutedRequest(self._router, prompt).assign(frozenset())
            if assignment is not None:
                assignment.first_byte()
                assignment.close(Outcome.BROKEN)

        return self._cost(serve)

    def _cost(self, call: Callable[[Prompt], object]) -> float:
        rounds = []
        for _ in range(self._rounds):
            began = time.thread_time()
            for prompt in self._prompts:
                call(prompt)
            rounds.append((time.thread_time() - began) / PROMPTS * 1e6)
        return median(rounds)

    def _hold(self, names: Sequence[str], random: Random) -> None:
        mirror = self._index.mirror
        facts = WorkerFacts(
            address="",
            model=_POOL,
            engine="builtin",
            engine_version="0",
            engine_block_tokens=16,
            index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS,
            fingerprint=pool_fingerprint(
                index_block_tokens=DEFAULT_INDEX_BLOCK_TOKENS, base_model=_POOL, tokenizer=_TOKENIZER
            ),
            publishes_events=True,
            capacity={"device": 8000},
        )
        for slot, name in enumerate(names, start=1):
            mirror.open_slot(slot)
            mirror.add(slot, "device", self._prompts[0].keys[:SHARED_BLOCKS])
            for prompt in random.sample(self._prompts, round(PROMPTS * HOLDERS)):
                mirror.add(slot, "device", prompt.keys[: random.randrange(SHARED_BLOCKS, BLOCKS)])
            mirror.set_worker(name, slot, facts)

    def _learn(self, names: Sequence[str], random: Random) -> None:
        """First bytes of prompts of all lengths, alike on all workers but for their speed."""
        rates = self._router.state.rates
        for name in names:
            per_token = 1e-4 * random.uniform(0.5, 2)
            for _ in range(SAMPLES // 4):
                uncached = random.randrange(200, 9000)
                rates.observe(name, 0.01 + per_token * uncached, pending=0, uncached=uncached, cached=0)
