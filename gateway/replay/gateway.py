"""Simulated gateways: the production router with a simulated clock, index and reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from prometheus_client import CollectorRegistry

from gateway.prompts.keyer import Prompt
from gateway.replay.events import Events
from gateway.replay.machine import Machine
from gateway.replay.trace import TraceRequest
from gateway.routing.census.targets import Target
from gateway.routing.census.workers import SLOW_START_SECONDS
from gateway.routing.metrics import RoutingMetrics
from gateway.routing.routed_request import PoolAssignment, RoutedRequest
from gateway.routing.router import PoolRouter
from gateway.routing.state.load_report import Report
from gateway.routing.state.slots import SlotEstimate
from indexer.keys import pool_fingerprint
from indexer.layout import WorkerFacts
from indexer.reader.mirror import Mirror
from warmroute.config.pool import PoolConfig

POOL: Final = "replay"
_TOKENIZER: Final = "replay"


class SimulatedIndex:
    """The index as the gateways see it: one mirror, since all of them lag alike."""

    def __init__(self, machines: Mapping[str, Machine], block_tokens: int, *, publishes_events: bool) -> None:
        self.mirror = Mirror()
        self.late: frozenset[str] = frozenset()
        fingerprint = pool_fingerprint(index_block_tokens=block_tokens, base_model=POOL, tokenizer=_TOKENIZER)
        for slot, (name, machine) in enumerate(machines.items(), start=1):
            self.mirror.open_slot(slot)
            facts = WorkerFacts(
                address=name,
                model=POOL,
                engine="simulated",
                engine_version="1",
                engine_block_tokens=1,
                index_block_tokens=block_tokens,
                fingerprint=fingerprint,
                publishes_events=publishes_events,
                capacity={"device": machine.cache_tokens // block_tokens},
            )
            self.mirror.set_worker(name, slot, facts)

    def stored(self, worker: str, keys: Sequence[int]) -> None:
        self.mirror.add(self.mirror.slot(worker), "device", keys)

    def removed(self, worker: str, keys: Sequence[int]) -> None:
        self.mirror.remove(self.mirror.slot(worker), "device", keys)


class SimulatedReports:
    """The workers' newest reports, as all gateways see them."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._slots: defaultdict[str, SlotEstimate] = defaultdict(SlotEstimate)

    def of(self, pool: str) -> dict[str, Report]:
        return self._reports

    def update(self, reports: Mapping[str, Report]) -> None:
        for name, report in reports.items():
            slots = self._slots[name].observe(report.running_requests, report.waiting_requests)
            self._reports[name] = replace(report, slots=slots)


class SimulatedGateway:
    """One gateway replica."""

    def __init__(
        self,
        config: PoolConfig,
        workers: Sequence[str],
        index: SimulatedIndex,
        reports: SimulatedReports,
        events: Events,
        random: Random,
    ) -> None:
        metrics = RoutingMetrics(CollectorRegistry())
        self.router = PoolRouter(config, index, reports, metrics, clock=lambda: events.now, random=random)
        self.router.census.use_tokenizer(_TOKENIZER)
        self.router.census.set_targets([Target(name, name, 1, worker_id=name, name=name) for name in workers])
        for worker in self.router.census.workers.all:
            worker.checked(-SLOW_START_SECONDS, healthy=True)

    def assign(self, request: TraceRequest) -> PoolAssignment:
        """Pick and book a worker."""
        prompt = Prompt(request.prompt_tokens, request.keys)
        assignment = RoutedRequest(self.router, prompt).assign(frozenset())
        if assignment is None:
            raise AssertionError("a replay's workers are always ready")
        return assignment
