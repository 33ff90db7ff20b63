"""From 50 workers over gRPC and Redis into a mirror, and what else the same processes show on the way.

Five processes of this machine: the workers (real publishers, a channel each), `warmroute indexer`, a Valkey server,
the gateway's side (a real `PoolIndex`), and this one, which waits. On two cores they share what a cluster has many
of: the rate is what two cores carry, the CPU a key of each process is what a deployment pays where it runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import uvloop
from redis import Redis

from bench.index import hset
from bench.index.gateway_side import open_gateway_side
from bench.index.processes import Process, machine_cpu_seconds
from bench.index.publishers import Published, Steady, open_publishers
from bench.index.report import Report
from bench.index.servers import Servers
from bench.index.watched_loop import Slices, WatchedLoop
from bench.index.workload import POOL, Sizes, keys_of_workers
from indexer.layout import Part

PARTS = ("workers", "indexer", "redis", "mirror")
AIM_KEYS_PER_S = 300_000


def measure(report: Report, seed: int, sizes: Sizes) -> None:
    """Print the figures; starts and ends all processes."""
    with Servers() as servers:
        report.progress(f"writing {sizes.pairs:,} (worker, key) pairs with HSET")
        held = keys_of_workers(seed, sizes)
        redis_cpu = servers.cpu_seconds()["redis"]
        baseline = hset.write(servers.redis_url, held)
        hset_cpu = baseline.client_cpu_seconds + servers.cpu_seconds()["redis"] - redis_cpu
        servers.start_indexer()
        report.progress("starting the indexer, the workers and a mirror")
        with (
            Process("mirror", open_gateway_side, WatchedLoop, servers.redis_url) as mirror,
            Process("workers", open_publishers, uvloop.new_event_loop, servers.indexer_address, seed, sizes) as workers,
        ):
            run = _Run(report, sizes, servers, workers, mirror)
            mirror.call("attached", sizes.workers)
            run.throughput(baseline, hset_cpu)
            run.lag()
            run.snapshots()
            run.boot()
            run.report_slices()


@dataclass(frozen=True, slots=True)
class _Moment:
    """CPU seconds so far, by process and of the whole machine."""

    at: float
    used: Mapping[str, float]
    machine: float

    def per_key(self, later: _Moment, keys: int) -> dict[str, float]:
        """CPU microseconds a key of each process between the two."""
        return {name: (later.used[name] - self.used[name]) / keys * 1e6 for name in PARTS}

    def neighbours(self, later: _Moment) -> float:
        """How many cores others kept busy between the two."""
        ours = sum(later.used[name] - self.used[name] for name in PARTS)
        return max(0.0, later.machine - self.machine - ours) / (later.at - self.at)


class _Run:
    def __init__(self, report: Report, sizes: Sizes, servers: Servers, workers: Process, mirror: Process) -> None:
        self._report = report
        self._sizes = sizes
        self._servers = servers
        self._workers = workers
        self._mirror = mirror
        self._slices: dict[str, Slices] = {}
        self._rate = 0.0

    # --- deltas ------------------------------------------------------------------------------------------------------

    def throughput(self, baseline: hset.Hset, hset_cpu: float) -> None:
        report, pairs = self._report, self._sizes.pairs
        report.heading(
            f"End to end: {self._sizes.workers} workers x {self._sizes.keys_a_worker:,} keys as deltas of up to 4,096 "
            "-> gRPC -> indexer -> Redis -> mirror"
        )
        memory = self._index_bytes()
        self._mirror.call("begin")
        before = self._moment()
        published: Published = self._workers.call("publish")
        ended_at = self._mirror.call("added", pairs)
        after = self._moment()
        each = before.per_key(after, pairs)
        self._slices["following deltas"] = self._mirror.call("slices")
        self._check_contents()
        grown = self._index_bytes() - memory
        self._rate = pairs / (ended_at - published.started_at)
        hset_rate = baseline.pairs / baseline.seconds
        report.add("end_to_end_keys_per_s", self._rate, "rate until the mirror holds the last key", unit=" keys/s")
        report.add(
            "hset_pairs_per_s", hset_rate, "  baseline: the same pairs, one pipelined HSET each", unit=" pairs/s"
        )
        report.add("end_to_end_over_hset", self._rate / hset_rate, "  times the baseline's rate", at_least=1.5)
        self._add_costs("end_to_end", each, before.neighbours(after))
        report.add(
            "end_to_end_merge_us_per_key",
            published.merge_cpu_seconds / pairs * 1e6,
            "  of the workers': merging changes into their state",
            unit=" us",
        )
        hset_each = hset_cpu / baseline.pairs * 1e6
        report.add("hset_cpu_us_per_pair", hset_each, "  baseline: CPU a pair, client and Redis", unit=" us")
        report.add(
            "end_to_end_cpu_over_hset", sum(each.values()) / hset_each, "  CPU of all four over the baseline's two"
        )
        report.add(
            "redis_bytes_per_worker_key",
            grown / pairs,
            "Redis memory a (worker, key), log left out",
            unit=" B",
            at_most=12,
        )
        report.add("hset_redis_bytes_per_pair", baseline.memory_bytes / baseline.pairs, "  baseline: HSET", unit=" B")

    def _add_costs(self, phase: str, each: Mapping[str, float], neighbours: float) -> None:
        for name, cost in each.items():
            self._report.add(f"{phase}_{name}_us_per_key", cost, f"CPU a key: {name}", unit=" us")
        self._report.add(f"{phase}_neighbours_cores", neighbours, "cores that other programs kept busy meanwhile")

    # --- lag ---------------------------------------------------------------------------------------------------------

    def lag(self) -> None:
        """At half the rate just measured, and at half of what is aimed at, 300,000 keys a second."""
        self._report.heading("Lag: from a change in a worker's state until the mirror has it, half added, half evicted")
        self._lag_at(self._rate / 2, "lag", "half that rate", at_most=250)
        self._lag_at(AIM_KEYS_PER_S / 2, "lag_150k", "150,000 keys/s")

    def _lag_at(self, rate: float, name: str, what: str, *, at_most: float | None = None) -> None:
        report = self._report
        report.progress(f"changing {rate:,.0f} keys/s for {self._sizes.lag_seconds:.0f} s")
        self._mirror.call("begin", True)
        before = self._moment()
        steady: Steady = self._workers.call("steady", rate, self._sizes.lag_seconds)
        self._mirror.call("added", len(steady.markers) * steady.added_each)
        after = self._moment()
        self._slices[f"following {what}"] = self._mirror.call("slices")
        arrived: list[float] = self._mirror.call("arrived_at", steady.markers)
        self._check_contents()
        lags = sorted((at - made) * 1e3 for at, made in zip(arrived, steady.made_at, strict=True))
        report.add(f"{name}_keys_per_s", steady.keys_per_s, f"{what}: held", unit=" keys/s")
        report.add(f"{name}_p50_ms", statistics.median(lags), "  median (deltas are 100 ms apart)", unit=" ms")
        report.add(f"{name}_p99_ms", lags[int(len(lags) * 0.99)], "  99th percentile", unit=" ms", at_most=at_most)
        report.add(f"{name}_max_ms", lags[-1], f"  longest of {len(lags):,} changes", unit=" ms")
        each = before.per_key(after, len(steady.markers) * steady.added_each * 2)
        self._add_costs(name, each, before.neighbours(after))

    # --- snapshots and boot ------------------------------------------------------------------------------------------

    def snapshots(self) -> None:
        report, pairs = self._report, self._sizes.pairs
        report.heading("Snapshots: all workers start a new epoch and send all they hold, 8 at a time")
        self._mirror.call("begin")
        before = self._moment()
        published: Published = self._workers.call("snapshots")
        ended_at = self._mirror.call("added", pairs)
        after = self._moment()
        each = before.per_key(after, pairs)
        report.add("snapshot_keys_per_s", pairs / (ended_at - published.started_at), "rate", unit=" keys/s")
        self._add_costs("snapshot", each, before.neighbours(after))
        self._mirror.call("swept")
        self._slices["reading snapshots and sweeping"] = self._mirror.call("slices")
        self._check_contents()

    def boot(self) -> None:
        report, pairs = self._report, self._sizes.pairs
        report.heading("Boot: a new gateway reads the whole index")
        with Process("second mirror", open_gateway_side, WatchedLoop, self._servers.redis_url) as second:
            second.call("attached", self._sizes.workers)
            seconds, cpu = second.call("boot_cost")
            report.add("boot_keys_per_s", pairs / seconds, "rate", unit=" keys/s")
            report.add("boot_us_per_key", cpu / pairs * 1e6, "CPU a key: mirror", unit=" us")
            self._slices["booting"] = second.call("slices")

    # --- slices ------------------------------------------------------------------------------------------------------

    def report_slices(self) -> None:
        report = self._report
        report.heading("Slices: how long the mirror's work keeps a gateway's loop, CPU time")
        for phase, slices in self._slices.items():
            name = phase.replace(" ", "_").replace(",", "").replace("/", "_")
            report.add(
                f"slice_{name}_ms",
                slices.longest_ms,
                f"{phase}: longest of {slices.count:,}, in {slices.longest_in}",
                unit=" ms",
            )
            report.add(f"slice_{name}_p999_ms", slices.p999_ms, "  99.9 % within", unit=" ms")
            report.add(f"turn_{name}_ms", slices.turn_longest_ms, "  longest turn of the loop, all tasks", unit=" ms")
            report.add(f"turn_{name}_p999_ms", slices.turn_p999_ms, "    99.9 % within", unit=" ms")
            report.add(
                f"turn_{name}_wall_ms", slices.turn_wall_longest_ms, "    wall time, with the neighbours", unit=" ms"
            )
        worst = max(slices.longest_ms for slices in self._slices.values())
        report.add("mirror_longest_slice_ms", worst, "longest slice of all", unit=" ms", at_most=2.0)
        worst = max(slices.p999_ms for slices in self._slices.values())
        report.add("mirror_p999_slice_ms", worst, "99.9 % of the worst phase's within", unit=" ms")

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _moment(self) -> _Moment:
        used = {
            **self._servers.cpu_seconds(),
            "workers": self._workers.cpu_seconds(),
            "mirror": self._mirror.cpu_seconds(),
        }
        return _Moment(time.monotonic(), used, machine_cpu_seconds())

    def _index_bytes(self) -> int:
        """Redis memory of all that the index keeps but its log, as the server says it of each key.

        How much the whole server grew says less: its clients' buffers and tables come and go by tens of kilobytes.
        """
        log = Part(POOL).key("log").encode()
        with Redis.from_url(self._servers.redis_url) as redis, redis.pipeline(transaction=False) as pipeline:
            for key in redis.scan_iter(count=1000):
                if key != log:
                    pipeline.memory_usage(key, samples=0)
            return sum(size or 0 for size in pipeline.execute())

    def _check_contents(self) -> None:
        """The figures are of a mirror that holds exactly what the workers hold."""
        held, mirrored = self._workers.call("contents"), self._mirror.call("contents")
        if held != mirrored:
            wrong = [name for name, keys in held.items() if mirrored.get(name) != keys]
            raise RuntimeError(f"the mirror differs from what {len(wrong)} workers hold, {wrong[0]} among them")
