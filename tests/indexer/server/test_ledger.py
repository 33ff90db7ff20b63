"""The ledger's script on a real server: what it checks, and what a repeated call does."""

from __future__ import annotations

import pytest
from redis.exceptions import RedisError

from indexer.layout import WorkerFacts
from indexer.reader.mirror import Match
from indexer.server.ledger import (
    SNAPSHOTS_AT_ONCE,
    EpochSupersededError,
    OutOfOrderError,
    SnapshotDeferredError,
    WorkerLostError,
    WorkerTakenError,
)
from tests.indexer.support import FACTS, PART, follower, ledger, run
from tests.support import eventually, redis_client


def test_the_ledger_checks_token_epoch_and_order(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            owner, seq = await book.hello("w", 1, FACTS)
            assert seq == 0
            with pytest.raises(WorkerLostError):
                await book.delta(owner, seq=1, added={"device": [1]}, removed={})
            with pytest.raises(OutOfOrderError) as wrong:
                await book.snapshot_chunk(owner, seq=1, chunk=1, last=True, held={})
            assert wrong.value.expected == 0
            await book.snapshot_chunk(owner, seq=1, chunk=0, last=False, held={"device": [1, 2**64 - 1]})
            with pytest.raises(OutOfOrderError):
                await book.snapshot_chunk(owner, seq=1, chunk=2, last=True, held={})
            # What a client repeats after a lost reply is done once.
            for _ in range(2):
                await book.snapshot_chunk(owner, seq=1, chunk=1, last=True, held={"host": [3]})
            await book.delta(owner, seq=2, added={"device": [5]}, removed={"device": [1]})
            await book.delta(owner, seq=2, added={"device": [6]}, removed={})
            with pytest.raises(OutOfOrderError) as wrong:
                await book.delta(owner, seq=4, added={}, removed={})
            assert wrong.value.expected == 3
            again, seq = await book.hello("w", 1, FACTS)
            assert seq == 2
            with pytest.raises(WorkerTakenError):
                await book.delta(owner, seq=3, added={}, removed={})
            assert await book.heartbeat([(owner, 2), (again, 2), (again, 3)]) == [0, 2]
            newer, seq = await book.hello("w", 2, FACTS)
            assert seq == 0
            with pytest.raises(EpochSupersededError):
                await book.hello("w", 1, FACTS)
            assert await book.heartbeat([(again, 0), (newer, 0)]) == [0]
            # The old epoch's keys left with it.
            assert not [key async for key in redis.scan_iter(match="*:keys:*")]

    run(scenario())


def test_another_capacity_needs_a_snapshot(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            owner, _ = await book.hello("w", 1, FACTS)
            await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={})
            larger = WorkerFacts("", "m", "e", "0", 16, 64, "f", publishes_events=True, capacity={"device": 9000})
            _, seq = await book.hello("w", 1, larger)
            assert seq == 0

    run(scenario())


def test_only_so_many_snapshots_at_once(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            owners = [(await book.hello(f"w{number}", 1, FACTS))[0] for number in range(SNAPSHOTS_AT_ONCE + 1)]
            for owner in owners[:-1]:
                await book.snapshot_chunk(owner, seq=1, chunk=0, last=False, held={})
            with pytest.raises(SnapshotDeferredError) as deferred:
                await book.snapshot_chunk(owners[-1], seq=1, chunk=0, last=True, held={})
            assert 50 <= deferred.value.retry_after_ms <= 1000
            await book.snapshot_chunk(owners[0], seq=1, chunk=1, last=True, held={})
            await book.snapshot_chunk(owners[-1], seq=1, chunk=0, last=True, held={})

    run(scenario())


def test_a_worker_silent_for_long_is_dropped_with_its_keys(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis, follower(redis_url) as mirror:
            book = ledger(redis)
            for name in ("silent", "live"):
                owner, _ = await book.hello(name, 1, FACTS)
                await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": [7]})
            await eventually(lambda: mirror.mirror.match([7]) == {"silent": Match(1), "live": Match(1)})
            assert (await book.drop_late(600))[1] == []
            await redis.zincrby(PART.key("beats"), -20_000, "silent")
            await eventually(lambda: mirror.late == {"silent"})
            await redis.zincrby(PART.key("beats"), -600_000, "silent")
            assert await book.drop_late(600) == (1, ["silent"])
            await eventually(lambda: mirror.mirror.match([7]) == {"live": Match(1)})
            assert set(mirror.mirror.workers) == {"live"}
            assert len([key async for key in redis.scan_iter(match="*:keys:*")]) == 1

    run(scenario())


def test_a_snapshot_that_is_cut_while_another_indexer_has_a_delta_to_write_changes_nothing(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis, follower(redis_url) as mirror:
            here, there = ledger(redis), ledger(redis)
            first, _ = await here.hello("w", 1, FACTS)
            await here.snapshot_chunk(first, seq=1, chunk=0, last=True, held={"device": [1]})
            await here.delta(first, seq=2, added={"device": [2]}, removed={})
            # The delta of state 3 lies in the first indexer; the stream is cut, and the worker goes to the second.
            second, seq = await there.hello("w", 1, FACTS)
            assert seq == 2
            await there.snapshot_chunk(second, seq=4, chunk=0, last=False, held={"device": [10]})
            with pytest.raises(WorkerTakenError):
                await here.delta(first, seq=3, added={"device": [3]}, removed={"device": [1]})
            # Cut again, inside the snapshot; what is left of both streams arrives in any order.
            third, seq = await here.hello("w", 1, FACTS)
            assert seq == 2
            with pytest.raises(WorkerTakenError):
                await there.snapshot_chunk(second, seq=4, chunk=1, last=True, held={"device": [11]})
            with pytest.raises(WorkerTakenError):
                await here.delta(first, seq=3, added={"device": [3]}, removed={"device": [1]})
            await eventually(lambda: mirror.mirror.match([1, 2]) == {"w": Match(2)})
            await here.snapshot_chunk(third, seq=5, chunk=0, last=True, held={"device": [5]})
            await eventually(lambda: set(mirror.mirror.held("w", "device")) == {5})
            assert len([key async for key in redis.scan_iter(match="*:keys:*")]) == 1

    run(scenario())


def test_workers_of_a_part_that_died_together_are_dropped_by_the_clock(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            for name in ("a", "b"):
                owner, _ = await book.hello(name, 1, FACTS)
                await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": [7]})
                await redis.zincrby(PART.key("beats"), -700_000, name)
            assert (await book.drop_late(600))[1] == []
            remaining, dropped = await book.drop_late(600, by_clock=True)
            assert (remaining, sorted(dropped)) == (0, ["a", "b"])
            assert not [key async for key in redis.scan_iter(match="*:keys:*")]

    run(scenario())


def test_a_server_without_memory_takes_no_snapshot_and_drops_workers_all_the_same(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            late, _ = await book.hello("late", 1, FACTS)
            await book.snapshot_chunk(late, seq=1, chunk=0, last=True, held={"device": range(500)})
            await redis.zincrby(PART.key("beats"), -700_000, "late")
            owner, _ = await book.hello("w", 1, FACTS)
            # What an earlier snapshot left behind must not open the door to this one.
            await redis.zadd(PART.key("snapshots"), {"left": 1})
            await redis.config_set("maxmemory", "1mb")
            try:
                with pytest.raises(RedisError, match=r"OOM|maxmemory"):
                    await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": range(500)})
                assert await book.drop_late(600) == (1, ["late"])
            finally:
                await redis.config_set("maxmemory", "0")
            await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held={"device": range(500)})

    run(scenario())


def test_a_clock_that_went_back_makes_nobody_late(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis, follower(redis_url) as mirror:
            book = ledger(redis)
            owners = {name: (await book.hello(name, 1, FACTS))[0] for name in ("dead", "live")}
            hour = 3_600_000
            await redis.zincrby(PART.key("beats"), hour, "dead")
            await redis.zadd(PART.key("snapshots"), {f"old{number}": 1e15 for number in range(SNAPSHOTS_AT_ONCE)})
            await eventually(lambda: mirror.late == {"live"})
            await book.heartbeat([(owners["live"], 0)])
            await eventually(lambda: not mirror.late)
            assert (await book.drop_late(600))[1] == []
            await book.snapshot_chunk(owners["live"], seq=1, chunk=0, last=True, held={"device": [7]})

    run(scenario())
