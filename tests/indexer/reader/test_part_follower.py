"""The follower of one part against a real Redis: boots under fire, losses, several parts."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from indexer.layout import Part, WorkerRecord, part_of, parts_key
from indexer.reader.metrics import MirrorMetrics
from indexer.reader.mirror import Match, Mirror
from indexer.reader.part_follower import ENTRIES_A_READ, PartFollower
from indexer.reader.pool_index import PoolIndex
from indexer.server.ledger import Ledger, PartsMismatchError
from indexer.server.metrics import IndexerMetrics
from tests.chaos.cluster import RedisProcess
from tests.indexer.support import (
    FACTS,
    PART,
    POOL,
    boots,
    engine,
    follower,
    in_step,
    indexer,
    keys_of,
    ledger,
    run,
    running,
)
from tests.support import eventually, redis_client


def part_follower(redis, mirror: Mirror, **changes) -> PartFollower:
    kind = changes.pop("kind", PartFollower)
    return kind(redis, PART, mirror, MirrorMetrics(CollectorRegistry()), changed=lambda: None)


def test_a_full_mirror_is_visible(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            owner, _ = await book.hello("w", 1, FACTS)
            held = {"device": range(1, 9), "host": range(20, 24)}
            await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held=held)
            registry = CollectorRegistry()
            full = PoolIndex(redis, POOL, MirrorMetrics(registry), new_mirror=lambda: Mirror(key_limit=5))
            async with running(full.run()):
                await eventually(
                    lambda: registry.get_sample_value("warmroute_mirror_refused_keys", {"pool": POOL}) == 3
                )
            assert registry.get_sample_value("warmroute_mirror_host_indexed", {"pool": POOL}) == 0

    run(scenario())


def test_a_boot_keeps_up_with_a_busy_log(redis_url: str) -> None:
    """While each slot is read, more is written than one read of the log takes, and the log keeps little."""

    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            owners = []
            for number in range(12):
                owner, _ = await book.hello(f"w{number}", 1, FACTS)
                await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": range(500)})
                owners.append(owner)
            seq = 1

            class BusyFollower(PartFollower):
                async def _read_slot(self, mirror_slot, slot, buckets) -> None:
                    nonlocal seq
                    await super()._read_slot(mirror_slot, slot, buckets)
                    for _ in range(2 * ENTRIES_A_READ // len(owners)):
                        seq += 1
                        for owner in owners:
                            await book.delta(owner, seq=seq, added={"device": [random.getrandbits(64)]}, removed={})

            registry = CollectorRegistry()
            mirror = BusyFollower(redis, PART, Mirror(), MirrorMetrics(registry), changed=lambda: None)
            async with running(mirror.run()):
                await eventually(lambda: mirror.booted, within=60)
                assert boots(registry, "start") == 1
                assert boots(registry, "trimmed") == 0

    run(scenario())


# --- losses ------------------------------------------------------------------------------------------------------


def test_two_wipes_around_a_boot_leave_no_trace_of_the_life_between(redis_url: str) -> None:
    """Whatever a boot has read of a life of the server that ends meanwhile, it ends with what the last one holds."""

    async def life(redis, *workers: str) -> dict[str, set[int]]:
        await redis.flushall()
        book = ledger(redis)
        held = {}
        for number, name in enumerate(workers):
            owner, _ = await book.hello(name, number + 1, FACTS)
            held[name] = {100 * number + key for key in range(5)}
            await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": sorted(held[name])})
        return held

    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            held: dict[str, set[int]] = {}

            class Wiped(PartFollower):
                wiped = False

                async def _read_slot(self, mirror_slot, slot, buckets) -> None:
                    if not Wiped.wiped:
                        Wiped.wiped = True
                        held.update(await life(redis, "b", "a"))
                    await super()._read_slot(mirror_slot, slot, buckets)

            await life(redis, "a", "b")
            mirror = Mirror()
            wiped = part_follower(redis, mirror, kind=Wiped)
            async with running(wiped.run()):
                await eventually(
                    lambda: wiped.booted and {name: set(mirror.held(name, "device")) for name in held} == held
                )

    run(scenario())


def test_slot_numbers_are_not_reused_after_a_wipe(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            slots = []
            for epoch in (1, 2, 3):
                book = ledger(redis)
                for worker in ("a", "b"):
                    owner, _ = await book.hello(worker, epoch, FACTS)
                    await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": [epoch]})
                    packed = await redis.hget(PART.key("workers"), worker)
                    slots.append(WorkerRecord.decode(worker, packed).slot)
                await redis.flushall()
            assert len(set(slots)) == 6
            assert slots == sorted(slots)

    run(scenario())


def test_after_a_wipe_a_worker_goes_by_what_it_held_until_its_snapshot(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis, follower(redis_url) as index:
            book = ledger(redis)
            owners = {name: (await book.hello(name, 1, FACTS))[0] for name in ("same", "restarted", "away")}
            for owner in owners.values():
                await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": [7]})
            await eventually(lambda: len(index.mirror.match([7])) == 3)
            await redis.flushall()
            await book.hello("same", 1, FACTS)
            await book.hello("restarted", 2, FACTS)
            # Once the restart is seen, so is all before it.
            await eventually(lambda: set(index.mirror.match([7])) == {"same", "away"})
            assert set(index.mirror.workers) == {"same", "restarted", "away"}
            assert not index.late
            owner, _ = await book.hello("same", 1, FACTS)
            await book.snapshot_chunk(owner, seq=2, chunk=0, last=True, held={"device": [8]})
            await eventually(lambda: set(index.mirror.match([8])) == {"same"})
            assert set(index.mirror.match([7])) == {"away"}

    run(scenario())


def test_what_is_kept_after_a_loss_is_kept_for_a_while_only(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.reader.part_follower.KEPT_SECONDS", 0.5)

    async def scenario() -> None:
        async with redis_client(redis_url) as redis, follower(redis_url) as index:
            book = ledger(redis)
            for name in ("here", "gone"):
                owner, _ = await book.hello(name, 1, FACTS)
                await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": [7]})
            await eventually(lambda: len(index.mirror.match([7])) == 2)
            await redis.flushall()
            await book.hello("here", 1, FACTS)
            await eventually(lambda: set(index.mirror.workers) == {"here"})
            await eventually(lambda: not index.mirror.match([7]))
            assert set(index.mirror.workers) == {"here"}

    run(scenario())


def test_a_boot_that_is_cut_leaves_nothing_open(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            for number in range(3):
                owner, _ = await book.hello(f"w{number}", 1, FACTS)
                await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": [number]})

            class Cut(PartFollower):
                reads = 0

                async def _read_slot(self, mirror_slot, slot, buckets) -> None:
                    Cut.reads += 1
                    await super()._read_slot(mirror_slot, slot, buckets)
                    if Cut.reads in (2, 4):
                        raise RedisError("cut by the test")

            mirror = Mirror()
            cut = part_follower(redis, mirror, kind=Cut)
            async with running(cut.run()):
                await eventually(lambda: cut.booted)
            assert len(mirror._positions) == 3
            assert [set(mirror.held(f"w{number}", "device")) for number in range(3)] == [{0}, {1}, {2}]

    run(scenario())


def test_a_mirror_that_was_full_is_read_anew_when_there_is_room(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            small, _ = await book.hello("small", 1, FACTS)
            await book.snapshot_chunk(small, seq=1, chunk=0, last=True, held={"device": [1], "host": [2]})
            big, _ = await book.hello("big", 1, FACTS)
            await book.snapshot_chunk(big, seq=1, chunk=0, last=True, held={"device": range(10, 20)})
            registry = CollectorRegistry()
            index = PoolIndex(redis, POOL, MirrorMetrics(registry), new_mirror=lambda: Mirror(key_limit=5))
            async with running(index.run()):
                await eventually(lambda: index.booted and not index.mirror.complete)
                await book.delta(big, seq=2, added={}, removed={"device": range(10, 20)})
                await eventually(lambda: index.mirror.match([1, 2]) == {"small": Match(2, 1)})
                assert index.mirror.complete
                assert boots(registry, "room") == 1

    run(scenario())


# --- parts -------------------------------------------------------------------------------------------------------


def test_a_pool_in_several_parts_is_one_index(redis_url: str) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            index = await stack.enter_async_context(indexer(redis_url, parts=4))
            mirror = await stack.enter_async_context(follower(redis_url))
            redis = await stack.enter_async_context(redis_client(redis_url))
            engines = [engine(index.address, f"w{number}") for number in range(12)]
            await stack.enter_async_context(running(*(worker.publisher.run() for worker in engines)))
            for number, worker in enumerate(engines):
                worker.store(1)
                worker.store(1, number)
            await eventually(lambda: mirror.parts == 4 and in_step(mirror, *engines))
            names = {worker.publisher.identity.worker_id for worker in engines}
            assert set(mirror.mirror.match(keys_of(1))) == names
            filled = 0
            for number in range(4):
                listed = {name.decode() for name in await redis.hkeys(Part(POOL, number).key("workers"))}
                assert listed == {name for name in names if part_of(POOL, name, 4).number == number}
                filled += bool(listed)
            assert filled > 1
            await redis.flushall()
            for number, worker in enumerate(engines):
                worker.store(1, number, 2)
            await eventually(lambda: mirror.parts == 4 and in_step(mirror, *engines))

    run(scenario())


def test_an_indexer_with_another_number_of_parts_is_refused_by_name(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            await ledger(redis).hello("w", 1, FACTS)
            assert await redis.get(parts_key(POOL)) == b"1"
            other = Ledger(redis, Part(POOL, 1), IndexerMetrics(CollectorRegistry()), parts=2)
            with pytest.raises(PartsMismatchError, match=r"indexer\.parts: 2 is refused: .* in 1 parts"):
                await other.hello("w", 1, FACTS)
            async with indexer(redis_url, parts=2) as index:
                worker = engine(index.address, "w2")
                async with running(worker.publisher.run()):
                    await eventually(lambda: "indexer.parts" in worker.publisher.trouble)

    run(scenario())


def test_a_pool_with_fewer_parts_after_a_wipe_forgets_the_others(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis, follower(redis_url) as mirror:
            async with indexer(redis_url, parts=4) as index:
                engines = [engine(index.address, f"w{number}") for number in range(8)]
                async with running(*(worker.publisher.run() for worker in engines)):
                    await eventually(lambda: mirror.parts == 4 and in_step(mirror, *engines))
            await redis.flushall()
            async with indexer(redis_url, parts=1) as index:
                moved = [engine(index.address, f"w{number}") for number in range(8)]
                async with running(*(worker.publisher.run() for worker in moved)):
                    for worker in moved:
                        worker.store(1)
                    await eventually(lambda: mirror.parts == 1 and in_step(mirror, *moved))

    run(scenario())


def test_the_log_is_bounded_in_bytes(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = Ledger(redis, PART, IndexerMetrics(CollectorRegistry()), log_entries=100_000, log_bytes=1 << 20)
            owner, _ = await book.hello("w", 1, FACTS)
            await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={})
            for seq in range(2, 202):
                keys = [random.getrandbits(64) for _ in range(1000)]
                await book.delta(owner, seq=seq, added={"device": keys}, removed={})
            assert await redis.memory_usage(PART.key("log")) > 1 << 20
            await book.heartbeat([(owner, 201)])
            assert 1 << 18 < await redis.memory_usage(PART.key("log")) < 1 << 20

    run(scenario())


def test_an_outage_is_logged_once_whatever_the_log_holds(caplog: pytest.LogCaptureFixture, tmp_path) -> None:
    async def scenario() -> None:
        redis = RedisProcess(tmp_path)
        redis.start()
        try:
            async with follower(redis.url) as mirror:
                await eventually(lambda: mirror.connected)
                redis.kill()
                await eventually(lambda: not mirror.connected)
                failures = len([record for record in caplog.records if "out of reach" in record.message])
                ends_at = asyncio.get_running_loop().time() + 1
                await eventually(lambda: asyncio.get_running_loop().time() > ends_at)
                assert not mirror.connected
                assert len([record for record in caplog.records if "out of reach" in record.message]) == failures == 1
        finally:
            redis.kill()

    with caplog.at_level("WARNING", "indexer"):
        run(scenario())
