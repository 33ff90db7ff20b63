"""What many changes and many workers cost the index: Redis as large as the caches, a rollout in seconds."""

from __future__ import annotations

import asyncio
import time

from tests.indexer.support import PART, Engine, engine, follower, in_step, indexer, run, running
from tests.support import eventually, redis_client


def test_what_passes_through_a_worker_leaves_redis_as_large_as_its_cache(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url, log_entries=1000) as index, follower(redis_url) as mirror:
            worker = engine(index.address, "w")
            async with running(worker.publisher.run()), redis_client(redis_url) as redis:
                for number in range(20_000):
                    worker.store(number)
                    if number >= 50:
                        worker.remove(number - 50)
                    if number % 50 == 0:
                        await asyncio.sleep(0.002)
                await eventually(lambda: in_step(mirror, worker))
                assert mirror.mirror.size == 50
                stored = sum([await redis.scard(key) async for key in redis.scan_iter(match="*:keys:*")])
                assert stored == 50
                assert await redis.xlen(PART.key("log")) <= 1200

    run(scenario())


def test_a_rollout_of_all_workers_takes_seconds_and_one_snapshot_each(redis_url: str) -> None:
    async def scenario() -> None:
        async with indexer(redis_url) as index, follower(redis_url) as mirror:

            def generation(name: str) -> list[Engine]:
                made = [engine(index.address, f"{name}{number}") for number in range(40)]
                for number, worker in enumerate(made):
                    for block in range(50):
                        worker.store(number * 100 + block)
                return made

            old = generation("old")
            async with running(*(worker.publisher.run() for worker in old)):
                await eventually(lambda: in_step(mirror, *old), within=20)
            new = generation("new")
            started_at = time.monotonic()
            async with running(*(worker.publisher.run() for worker in new)):

                def known(worker: Engine) -> bool:
                    name = worker.publisher.identity.worker_id
                    return set(mirror.mirror.held(name, "device")) == worker.publisher.state.held("device")

                await eventually(lambda: all(map(known, new)), within=20)
                assert time.monotonic() - started_at < 10
                assert [worker.count("snapshots") for worker in new] == [1] * 40

    run(scenario())
