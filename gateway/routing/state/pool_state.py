"""What a gateway knows of a pool's workers beside what they say of themselves, and the facts that it makes of it.

What a worker has cached is what the index says, or in approximate mode what was routed to it; and what is predicted.
Its load is what gateways have booked on it, and its own report. Of a worker that the index is late with, neither its
entries in the index nor its reports count.

The state changes with every request. No I/O; the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from gateway.prompts.keyer import KeySpace, Prompt
from gateway.routing.census.census import IndexView
from gateway.routing.census.workers import Worker
from gateway.routing.policies.facts import CandidateFacts, PrefillRate
from gateway.routing.state.approximate import DEFAULT_CAPACITY_KEYS, ApproximateIndex
from gateway.routing.state.load_report import FRESH_SECONDS, Report
from gateway.routing.state.means import RunningMean
from gateway.routing.state.peer_sync import PeerSync
from gateway.routing.state.predictions import Predictions
from gateway.routing.state.rates import PrefillRates
from gateway.routing.state.reservations import NOTHING, Reservations
from gateway.routing.state.retry_budget import RetryBudget
from gateway.routing.state.sessions import Sessions
from indexer.reader.mirror import Match
from warmroute.config.pool import PoolConfig

NO_MATCH: Final = Match(0)
NO_MATCHES: Final[dict[str, Match]] = {}
NO_DEPTHS: Final[dict[str, int]] = {}
NO_RATES: Final[dict[str, PrefillRate]] = {}
NO_KEYS: Final[Sequence[int]] = ()


class Reports(Protocol):
    """What routing reads of the workers' loads: `gateway.discovery.load_reports.LoadReports`, or a replay's own."""

    def of(self, pool: str) -> dict[str, Report]: ...


class PoolState:
    """One pool's state. Bounded as its parts are."""

    def __init__(self, config: PoolConfig, index: IndexView, reports: Reports, *, rated: bool) -> None:
        """`rated`: the facts include the workers' learned rates."""
        self.index = index
        self.reservations = Reservations()
        self.predictions = Predictions()
        self.peers = PeerSync(self.reservations, self.predictions)
        """The other gateways' bookings and predictions; whoever exchanges messages with them keeps it current."""
        self.approximate = ApproximateIndex()
        self.rates = PrefillRates()
        self.sessions = Sessions()
        self.work_tokens = RunningMean()
        """Prefill of a request."""
        self._stays = RunningMean()
        self._whole = RunningMean()
        self.retry_budget = RetryBudget(config.retry_ratio, config.retries_per_second)
        self._pool = config.name
        self._reports = reports
        self._rates: dict[str, PrefillRate] = self.rates.learned if rated else NO_RATES

    def forget(self, worker: str) -> None:
        """The worker with this uid left. Its bookings are freed when their requests end."""
        self.rates.forget(worker)
        self.approximate.forget(worker)

    def unreported(self, workers: Iterable[Worker], now: float) -> int:
        """Workers that the index knows and that have not reported their load lately."""
        reports, oldest = self._reports.of(self._pool), now - FRESH_SECONDS
        known = [worker.index_id for worker in workers if worker.index_id is not None]
        return sum(name not in reports or reports[name].measured_at < oldest for name in known)

    def facts(
        self, candidates: Sequence[Worker], prompt: Prompt | None, space: KeySpace | None, now: float
    ) -> tuple[list[CandidateFacts], list[Match]]:
        """The candidates' facts, and their matches without what is predicted; both in the order of the candidates."""
        self.predictions.expire(now)
        keys = NO_KEYS if prompt is None or space is None else prompt.keys
        confirmed = self.index.mirror.match(keys) if keys else NO_MATCHES
        approximate = self.approximate.match(keys) if keys else NO_MATCHES
        predicted = self.predicted(keys) if keys else NO_DEPTHS
        shared = self.peers.shared(now)
        late, reports, rates = self.index.late, self._reports.of(self._pool), self._rates
        bookings = self.reservations.all if shared else self.reservations.own
        oldest = now - FRESH_SECONDS
        fullness, eviction_price = self.index.mirror.fullness, self.index.mirror.eviction.price
        tokens, size = (prompt.tokens, space.index_block_tokens) if keys and prompt and space else (0, 0)
        facts: list[CandidateFacts] = []
        matches: list[Match] = []
        for worker in candidates:
            uid, index_id = worker.uid, worker.index_id
            waiting: int | None = None
            kv_use: float | None = None
            slots = 0
            eviction: float | None = None
            match = NO_MATCH
            booked = bookings.get(uid, NOTHING)
            if index_id is not None and index_id not in late:
                match = confirmed.get(index_id, NO_MATCH)
                if not worker.approximate:
                    eviction = eviction_price * fullness.get(index_id, 0.0)
                report = reports.get(index_id)
                if report is not None and report.measured_at >= oldest:
                    waiting, kv_use, slots = report.waiting_tokens, report.kv_cache_usage, report.slots
                    if not shared:
                        booked = self.peers.without_others(uid, report)
            if approximate and worker.approximate:
                match = approximate.get(uid, NO_MATCH)
            matched = host = 0
            blocks, host_blocks = match
            if predicted and blocks < (expected := predicted.get(uid, 0)):
                blocks = expected
            if blocks:
                # An engine computes at least the prompt's last token, and takes whole blocks of its own from the cache.
                engine_block = 1 if worker.facts is None else worker.facts.engine_block_tokens
                matched = min(blocks * size, tokens - 1) // engine_block * engine_block
                host = min(host_blocks * size, matched) if host_blocks else 0
            matches.append(match)
            # By position: names cost a third more, a worker.
            facts.append(
                CandidateFacts(
                    worker.name,
                    matched,
                    host,
                    booked.pending_tokens,
                    waiting,
                    booked.requests,
                    kv_use,
                    worker.capacity_tokens,
                    rates.get(uid),
                    slots,
                    eviction,
                )
            )
        return facts, matches

    def predicted(self, keys: Sequence[int]) -> dict[str, int]:
        """Leading blocks that this gateway or another expects on workers."""
        depths = self.predictions.match(keys)
        if self.peers.predicted.keys:
            for uid, depth in self.peers.predicted.match(keys).items():
                if depth > depths.get(uid, 0):
                    depths[uid] = depth
        return depths

    @property
    def stay_seconds(self) -> float:
        """From a reply's first byte to its last, in the mean, or all of it where replies are not streamed; 0 before the
        first."""
        return self._stays.value or self._whole.value

    def replied(self, seconds: float, first_byte_seconds: float, *, streamed: bool) -> None:
        """A reply has come whole: so long after the pick, and its first byte."""
        if streamed:
            self._stays.observe(seconds - first_byte_seconds)
        else:
            self._whole.observe(seconds)

    def computed(self, worker: Worker, prompt: Prompt) -> None:
        """A reply's first byte came: a worker in approximate mode is taken to hold the prompt now."""
        if prompt.keys and worker.approximate:
            capacity = worker.facts.capacity.get("device", 0) if worker.facts else 0
            self.approximate.computed(worker.uid, prompt.keys, capacity or DEFAULT_CAPACITY_KEYS)
