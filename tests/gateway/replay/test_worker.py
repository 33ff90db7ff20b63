"""The simulated engine's times, against the machine's formulas."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.replay.events import Events
from gateway.replay.machine import Machine
from gateway.replay.trace import TraceRequest
from gateway.replay.worker import Changes, Job, SimulatedWorker

MACHINE = Machine(0.01, 1e-4, 1e-8, 0.02, 1e-3, 1e-8, cache_tokens=6400, chunk_tokens=1000, max_streams=2)
CHUNK = 0.1


class Bench:
    def __init__(self, machine: Machine = MACHINE) -> None:
        self.events = Events()
        self.stored: list[tuple[float, Sequence[int]]] = []
        self.removed: list[Sequence[int]] = []
        changes = Changes(
            lambda _, keys: self.stored.append((self.events.now, keys)), lambda _, keys: self.removed.append(keys)
        )
        self.worker = SimulatedWorker("w", machine, 64, self.events, changes)
        self.ended: list[Job] = []

    def job(self, tokens: int, reply: int, keys: list[int]) -> Job:
        job = Job(TraceRequest(0.0, tokens, reply, keys), self.events.now, 0)
        job.on_end = lambda: self.ended.append(job)
        return job

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.worker.submit(job)

    def run(self) -> None:
        while self.events.step():
            pass


def test_a_prompt_alone_takes_the_machines_time() -> None:
    bench = Bench()
    job = bench.job(200, 11, [1, 2, 3])
    bench.submit(job)
    bench.run()
    prefill = 0.01 + 1e-4 * 200 + 1e-8 * 200 * 100
    assert job.first_byte_at == pytest.approx(prefill)
    step = 0.02 + 1e-3 + 1e-8 * (200 + 5)
    assert job.ended_at == pytest.approx(prefill + 10 * step)
    assert bench.stored == [(pytest.approx(prefill), [1, 2, 3])]
    assert bench.worker.busy_seconds == pytest.approx(prefill)
    assert bench.worker.cache.use == 0


def test_a_second_prompt_finds_the_firsts_blocks_and_at_most_all_but_its_last_token() -> None:
    bench = Bench()
    first, second = bench.job(200, 1, [1, 2, 3]), bench.job(192, 1, [1, 2, 3])
    bench.submit(first)
    bench.run()
    bench.submit(second)
    bench.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 191)
    assert second.first_byte_at - first.first_byte_at == pytest.approx(0.01 + 1e-4 + 1e-8 * 191.5)


def test_one_prompt_is_computed_at_a_time_and_stalls_the_streams() -> None:
    bench = Bench()
    streaming, long = bench.job(64, 1000, [1]), bench.job(5000, 1, list(range(10, 88)))
    bench.submit(streaming, long)
    bench.run()
    alone = 0.01 + 1e-4 * 64 + 1e-8 * 64 * 32
    assert streaming.first_byte_at == pytest.approx(alone)
    slowed = 1 + 1e-8 * streaming.kv_tokens / CHUNK
    prefill = (0.01 + 1e-4 * 5000 + 1e-8 * 5000 * 2500) * slowed
    assert long.first_byte_at == pytest.approx(alone + prefill)
    step = 0.02 + 1e-3 + 1e-8 * streaming.kv_tokens
    during = prefill / (step + CHUNK)
    assert streaming.ended_at == pytest.approx(alone + prefill + (999 - during) * step)


def test_the_head_of_the_line_waits_for_memory_and_all_behind_it() -> None:
    bench = Bench()
    first = bench.job(3000, 500, list(range(46)))
    second, third = bench.job(3000, 500, list(range(100, 146))), bench.job(64, 1, [500])
    bench.submit(first, second, third)
    bench.run()
    assert bench.ended == [first, third, second]
    assert second.first_byte_at > first.ended_at
    assert third.first_byte_at > second.first_byte_at
    assert bench.removed


def test_no_more_streams_than_the_machine_takes() -> None:
    bench = Bench()
    jobs = [bench.job(64, 100, [number]) for number in range(3)]
    bench.submit(*jobs)
    bench.run()
    assert jobs[2].first_byte_at > min(jobs[0].ended_at, jobs[1].ended_at)


def test_the_report_counts_what_is_not_yet_computed() -> None:
    bench = Bench()
    bench.submit(bench.job(640, 1, list(range(10))), bench.job(320, 1, list(range(5))), bench.job(100, 1, [77]))
    report = bench.worker.report(0.0)
    assert (report.running_requests, report.waiting_requests) == (1, 2)
    computing = 0.01 + 1e-4 * 640 + 1e-8 * 640 * 320
    # The second one's blocks are being computed already: all but its last token.
    assert report.waiting_tokens == round(computing / 1e-4) + 1 + 100
    bench.run()
    assert bench.worker.report(0.0).waiting_tokens == 0
