"""A pool's router whose mirror, reports and time the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from prometheus_client import CollectorRegistry

from gateway.discovery.load_reports import LoadReports
from gateway.http.outcome import Outcome
from gateway.process.metrics import GatewayMetrics
from gateway.prompts.keyer import Prompt
from gateway.routing.census.targets import Target
from gateway.routing.routed_request import PoolAssignment, RoutedRequest
from gateway.routing.router import PoolRouter
from gateway.routing.state.load_report import Report
from indexer.keys import pool_fingerprint, prompt_keys
from indexer.layout import WorkerFacts
from indexer.reader.pool_index import PoolIndex
from warmroute.config.model import RedisConfig
from warmroute.config.pool import PoolConfig
from warmroute.redis.client import connect

TOKENIZER = "ab" * 32
FINGERPRINT = pool_fingerprint(index_block_tokens=64, base_model="m", tokenizer=TOKENIZER)
NAMES = ("a", "b", "c", "d")


class Pool:
    """A router whose mirror, reports and time the test sets."""

    def __init__(self, names: tuple[str, ...] = NAMES, **config) -> None:
        self.now = 100.0
        self.registry = CollectorRegistry()
        metrics = GatewayMetrics(self.registry)
        # Never started: it connects when it runs.
        self.index = PoolIndex(connect(RedisConfig()), "p", metrics)
        self.reports = LoadReports([], ["p"], metrics)
        settings = PoolConfig(name="p", model="m", **config)
        self.router = PoolRouter(settings, self.index, self.reports, metrics, clock=lambda: self.now, random=Random(7))
        self.slots = 0
        self.use(TOKENIZER)
        self.targets([Target(name, "10.0.0.1", 8000 + number, worker_id=name) for number, name in enumerate(names)])
        for name in names:
            self.hold(name, [])

    def use(self, tokenizer: str) -> None:
        """Say which tokenizer gateway and workers have; workers say so in Hello."""
        self.fingerprint = pool_fingerprint(index_block_tokens=64, base_model="m", tokenizer=tokenizer)
        self.router.census.use_tokenizer(tokenizer)
        for name in list(self.index.mirror.workers):
            self.hold(name, [])

    def targets(self, targets: list[Target]) -> None:
        self.router.census.set_targets(targets)
        for worker in self.router.census.workers.all:
            worker.checked(0, healthy=True)

    def hold(self, name: str, keys: list[int], **facts) -> None:
        self.slots += 1
        mirror = self.index.mirror
        mirror.open_slot(self.slots)
        mirror.add(self.slots, "device", keys)
        fields = {"address": name, "model": "m", "engine": "e", "engine_version": "0", "engine_block_tokens": 16}
        fields |= {"index_block_tokens": 64, "fingerprint": self.fingerprint, "publishes_events": True, **facts}
        mirror.set_worker(name, self.slots, WorkerFacts(**fields))

    def report(self, name: str, waiting_tokens: int, age: float = 0.0, kv_use: float = 0.0) -> None:
        self.reports.of("p")[name] = Report(waiting_tokens, 0, 0, kv_use, self.now - age)

    def assign(self, prompt: Prompt | None, exclude: frozenset[str] = frozenset()) -> PoolAssignment:
        assignment = RoutedRequest(self.router, prompt).assign(exclude)
        assert assignment is not None
        return assignment

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def prompt(tokens: int, start: int = 0) -> Prompt:
    return Prompt(tokens, prompt_keys(range(start, start + tokens), FINGERPRINT))


@contextmanager
def open_assignments(pool: Pool, prompts: list[Prompt]) -> Iterator[list[PoolAssignment]]:
    """Requests that are all in flight at once; at their end every counter must be zero."""
    assignments = [pool.assign(item) for item in prompts]
    yield assignments
    for assignment in assignments:
        assignment.first_byte()
        assignment.close(Outcome.COMPLETED)
    assert pool.router.state.reservations.workers == frozenset()
    pool.now += 10
    pool.router.state.predictions.expire(pool.now)
    assert pool.router.state.predictions.keys == 0
