"""A discrete-event simulation of gateways and workers around the production router.

The router, its policy, mirror, predictions, reservations and rates are the gateway's own code with the simulation's
clock. Only what stands around them is simulated: clients, engines, and the lags of the index and of reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from gateway.http.outcome import Outcome
from gateway.replay.events import Events
from gateway.replay.figures import Figures, figures
from gateway.replay.gateway import POOL, SimulatedGateway, SimulatedIndex, SimulatedReports
from gateway.replay.machine import Machine
from gateway.replay.settings import PolicySetting, ReplaySettings
from gateway.replay.simulated_peer_channel import SimulatedPeerChannel
from gateway.replay.trace import Trace, TraceRequest
from gateway.replay.worker import Changes, Job, SimulatedWorker
from gateway.routing.routed_request import PoolAssignment

SESSION_STARTS_SECONDS: Final = 60.0
"""The first sessions of a closed trace begin spread over this time."""
NEXT_SESSION_SECONDS: Final = 1.0


class Simulation:
    """One run of one policy over one trace."""

    def __init__(self, trace: Trace, policy: PolicySetting, settings: ReplaySettings) -> None:
        self.events = Events()
        self.jobs: list[Job] = []
        """Finished requests, in the order they ended."""
        self.refused = 0
        """Requests that no worker's cache could ever hold."""
        self._trace = trace
        self._policy = policy
        self._settings = settings
        self._random = Random(settings.seed)
        self._over = False
        self._arrived = 0
        self._expected = 0
        self._waiting_sessions: list[TraceRequest] = []
        machines = _machines(settings)
        self._index = SimulatedIndex(machines, trace.block_tokens, publishes_events=settings.publishes_events)
        self._reports = SimulatedReports()
        changes = Changes(self._stored, self._removed)
        self.workers = {
            name: SimulatedWorker(name, machine, trace.block_tokens, self.events, changes)
            for name, machine in machines.items()
        }
        self.gateways = [
            SimulatedGateway(
                policy.pool(POOL),
                list(machines),
                self._index,
                self._reports,
                self.events,
                Random(self._random.getrandbits(64)),
            )
            for _ in range(settings.gateways)
        ]
        if settings.shared:
            SimulatedPeerChannel([gateway.router.state.peers for gateway in self.gateways], self.events)

    def run(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Figures:
        """Run to the end of an open trace's last reply, or until a closed one has no new session to begin.

        `progress` is told now and then how many of how many requests are done.
        """
        requests = list(self._trace.requests)
        if self._trace.closed:
            self._expected = len(self._trace)
            running = self._settings.sessions
            self._waiting_sessions = requests[running:][::-1]
            for number, first in enumerate(requests[:running]):
                self.events.at(number * SESSION_STARTS_SECONDS / running, self._arrive, first)
        else:
            self._expected = len(self._trace)  # sessions may begin at recorded times too
            start = requests[0].at if requests else 0.0
            for request in requests:
                self.events.at((request.at - start) / self._settings.speed, self._arrive, request)
        self.events.at(0.0, self._measure)
        step, every = self.events.step, max(1, self._expected // 100)
        told = 0
        while not self._over and len(self.jobs) + self.refused < self._expected and step():
            if len(self.jobs) >= told + every:
                told = len(self.jobs)
                progress(told, self._expected)
        progress(len(self.jobs), len(self.jobs))
        busy = [worker.busy_seconds for worker in self.workers.values()]
        return figures(self._policy.label, self.jobs, busy, self.events.now, self.refused)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _arrive(self, request: TraceRequest) -> None:
        if not all(worker.fits(request) for worker in self.workers.values()):
            self.refused += 1
            self._next(request)
            return
        gateway = (
            self.gateways[self._random.randrange(len(self.gateways))] if len(self.gateways) > 1 else self.gateways[0]
        )
        job = Job(request, self.events.now, self._arrived)
        self._arrived += 1
        assignment = gateway.assign(request)
        job.on_first_byte = assignment.first_byte
        job.on_end = lambda: self._end(job, assignment)
        self.workers[assignment.worker_id].submit(job)

    def _end(self, job: Job, assignment: PoolAssignment) -> None:
        assignment.close(Outcome.COMPLETED)
        self.jobs.append(job)
        self._next(job.request)

    def _next(self, request: TraceRequest) -> None:
        """The session goes on, or another begins in its place."""
        if request.following is not None:
            self.events.at(self.events.now + request.following.think_seconds, self._arrive, request.following)
        elif self._trace.closed:
            if self._waiting_sessions:
                self.events.at(self.events.now + NEXT_SESSION_SECONDS, self._arrive, self._waiting_sessions.pop())
            else:
                self._over = True  # fewer sessions than before: no longer the same load

    # --- what gateways learn of workers ------------------------------------------------------------------------------

    def _stored(self, worker: str, keys: Sequence[int]) -> None:
        if self._settings.publishes_events:
            self.events.at(self.events.now + self._settings.index_lag, self._index.stored, worker, keys)

    def _removed(self, worker: str, keys: Sequence[int]) -> None:
        if self._settings.publishes_events:
            self.events.at(self.events.now + self._settings.index_lag, self._index.removed, worker, keys)

    def _measure(self) -> None:
        now = self.events.now
        reports = {name: worker.report(now) for name, worker in self.workers.items()}
        self.events.at(now + self._settings.report_lag, self._reports.update, reports)
        self.events.at(now + self._settings.report_every, self._measure)


def _machines(settings: ReplaySettings) -> dict[str, Machine]:
    """Each worker's machine; the slow ones first."""
    normal, factor = settings.machine, settings.slow_factor
    slow = replace(
        normal,
        prefill_fixed=normal.prefill_fixed * factor,
        prefill_token=normal.prefill_token * factor,
        prefill_pair=normal.prefill_pair * factor,
        step_fixed=normal.step_fixed * factor,
        step_stream=normal.step_stream * factor,
        step_kv_token=normal.step_kv_token * factor,
    )
    return {
        f"worker-{number:02}": slow if number < settings.slow_workers else normal for number in range(settings.workers)
    }
