"""Reading the index of a real server: counts, strays, memory, matches, and what a user may not ask."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import ResponseError

from indexer.inspection import ledger_reader as inspect_reader
from indexer.inspection.ledger_reader import Reader, Survey
from indexer.layout import Part, parts_key
from indexer.reader.mirror import Match, Mirror
from indexer.server.ledger import Ledger, Ownership
from indexer.server.metrics import IndexerMetrics
from tests.indexer.support import FACTS, PART, POOL, ledger
from tests.redis_servers import server_cluster
from tests.support import redis_client
from warmroute.config.redis import RedisConfig
from warmroute.redis.client import Client, connect

COMMANDS = (
    "exists",
    "get",
    "getrange",
    "hgetall",
    "scan",
    "scard",
    "smismember",
    "time",
    "xlen",
    "xrevrange",
    "zrange",
)


def run(coroutine) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


async def publish(book: Ledger, worker: str, epoch: int = 1, **held: list[int]) -> Ownership:
    owner, _ = await book.hello(worker, epoch, FACTS)
    await book.snapshot_chunk(owner, seq=1, chunk=0, last=True, held=held)
    return owner


def test_an_empty_server_has_no_pools(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            await redis.set("wr:{p}:flight", "of another kind")
            survey = await Reader(redis).survey()
            assert survey.pools == []
            assert survey.complete
            server = await Reader(redis).server()
            assert server.used_bytes > 0
            assert server.policy == "noeviction"
            assert abs(server.now_ms / 1000 - (await redis.time())[0]) < 2

    run(scenario())


def test_workers_keys_and_log_are_as_the_ledger_wrote_them(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book, reader = ledger(redis), Reader(redis)
            device = [key << 40 for key in range(1, 1501)]
            owner = await publish(book, "w", device=device, host=[2**64 - 1])
            await book.delta(owner, seq=2, added={"device": [5]}, removed={"device": device[:100]})
            await book.hello("new", 0xAB, FACTS)
            survey = await reader.survey()
            assert survey.pools == [POOL]
            pool = await reader.pool(POOL, survey)
            assert [worker.worker_id for worker in pool.workers] == ["new", "w"]
            new, worker = pool.workers
            assert (new.slot, new.epoch, new.tiers["device"].keys) == (0, f"{0xAB:016x}", 0)
            assert worker.slot > 0
            assert worker.seq == 2
            assert {tier: view.keys for tier, view in worker.tiers.items()} == {"device": 1401, "host": 1}
            assert not worker.late
            assert worker.beat_age_seconds < 5
            (part,) = pool.parts
            assert part.stray_sets == 0
            assert part.log_entries == await redis.xlen(PART.key("log")) == 4
            assert part.newest_entry_age_seconds < 5
            assert part.log_bytes > 100
            sets = [name async for name in redis.scan_iter(match="*:keys:*")]
            exact = sum([await redis.memory_usage(name) for name in sets])
            assert part.keys_bytes == exact  # fewer sets than are sampled
            assert pool.problems == []

    run(scenario())


def test_sets_that_no_record_names_are_strays_and_those_of_a_snapshot_under_way_are_not(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book, reader = ledger(redis), Reader(redis)
            owner = await publish(book, "w", device=[1])
            await book.snapshot_chunk(owner, seq=2, chunk=0, last=False, held={"device": list(range(9))})
            survey = await reader.survey()
            pool = await reader.pool(POOL, survey)
            assert pool.workers[0].snapshot_chunks == 1
            assert pool.parts[0].stray_sets == 0
            # A slot that is retired between the survey and the reading is no stray.
            await book.snapshot_chunk(owner, seq=2, chunk=1, last=True, held={})
            assert (await reader.pool(POOL, survey)).parts[0].stray_sets == 0
            await redis.sadd(PART.bucket_key(1, "device", 0), 1)
            await redis.sadd(PART.bucket_key(1, "device", 1), 1)
            assert (await reader.pool(POOL, await reader.survey())).parts[0].stray_sets == 2

    run(scenario())


def test_one_pool_of_several_and_its_parts(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            reader = Reader(redis)
            for pool, number in (("a", 0), ("a", 1), ("ab", 0), ("a/1", 0)):
                book = Ledger(redis, Part(pool, number), IndexerMetrics(CollectorRegistry()), parts=2)
                await publish(book, f"w{number}", device=[number])
            assert (await reader.survey()).pools == ["a", "a/1", "ab"]
            survey = await reader.survey("a")
            assert sorted(part.number for part in survey.parts) == [0, 1]
            assert survey.pools == ["a"]
            pool = await reader.pool("a", survey)
            assert pool.declared_parts == 2
            assert [(worker.worker_id, worker.part) for worker in pool.workers] == [("w0", 0), ("w1", 1)]
            assert await reader.match("a", survey, [0, 1]) == {"w0": Match(1)}
            await redis.set(parts_key("a"), "many")
            pool = await reader.pool("a", survey)
            assert pool.declared_parts is None
            assert "many" in pool.problems[0]

    run(scenario())


def test_a_walk_that_is_too_long_says_so(redis_url: str, monkeypatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(inspect_reader, "SCAN_COUNT", 10)
        monkeypatch.setattr(inspect_reader, "SCAN_LIMIT", 20)
        async with redis_client(redis_url) as redis:
            await redis.mset({f"other:{number}": 1 for number in range(1000)})
            await publish(ledger(redis), "w", device=[1])
            survey = await Reader(redis).survey()
            assert not survey.complete
            survey.parts.setdefault(PART, {})
            assert (await Reader(redis).pool(POOL, survey)).parts[0].stray_sets is None

    run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_matches_are_those_of_the_mirror(redis_url: str, monkeypatch, seed: int) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(inspect_reader, "MATCH_WINDOW", 7)
        monkeypatch.setattr(inspect_reader, "BATCH", 3)
        rng, mirror = random.Random(seed), Mirror()
        keys = [rng.getrandbits(64) for _ in range(60)]
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            for number in range(8):
                device = {key for key in keys[: rng.randrange(61)] if rng.random() < 0.95}
                host = {key for key in keys[: rng.randrange(61)] if rng.random() < 0.9}
                await publish(book, f"w{number}", device=list(device), host=list(host)[:10])
                mirror.open_slot(number + 1)
                mirror.add(number + 1, "device", device)
                mirror.add(number + 1, "host", list(host)[:10])
                mirror.set_worker(f"w{number}", number + 1, FACTS)
            await book.hello("holds nothing", 1, FACTS)
            reader = Reader(redis)
            survey = await reader.survey()
            for prompt in (keys, keys[:1], keys[:23], keys[5:], []):
                assert await reader.match(POOL, survey, prompt) == mirror.match(prompt)
            assert len(mirror.match(keys)) > 1  # there was something to compare

    run(scenario())


def test_a_slot_that_is_replaced_meanwhile_is_read_again(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            book = ledger(redis)
            owner = await publish(book, "w", device=[1, 2])

            class Racing(Reader):
                seq = 1

                async def _match_worker(self, *arguments):
                    if self.seq == 1:
                        self.seq += 1
                        held = {"device": [1, 2, 3]}
                        await book.snapshot_chunk(owner, seq=self.seq, chunk=0, last=True, held=held)
                    return await super()._match_worker(*arguments)

            reader = Racing(redis)
            assert await reader.match(POOL, await reader.survey(), [1, 2, 3, 4]) == {"w": Match(3)}

    run(scenario())


def test_parts_on_several_nodes_of_a_cluster(tmp_path: Path) -> None:
    with server_cluster(tmp_path) as cluster:

        async def scenario() -> None:
            async with redis_client(cluster.url) as redis:
                for number in range(6):
                    book = Ledger(redis, Part("a", number), IndexerMetrics(CollectorRegistry()), parts=6)
                    await publish(book, f"w{number}", device=[7, 8 + number], host=[9])
                reader = Reader(redis)
                survey = await reader.survey()
                assert sorted(part.number for part in survey.parts) == list(range(6))
                pool = await reader.pool("a", survey)
                assert [worker.tiers["device"].keys for worker in pool.workers] == [2] * 6
                assert [part.stray_sets for part in pool.parts] == [0] * 6
                assert {part.log_entries for part in pool.parts} == {2}
                assert await reader.match("a", survey, [7, 8, 9]) == {
                    "w0": Match(3, 1),
                    **{f"w{number}": Match(1) for number in range(1, 6)},
                }
                nodes = [await node.info("memory") for node in await redis.masters()]
                assert len(nodes) > 1
                assert (await reader.server()).used_bytes > max(node["used_memory"] for node in nodes)

        run(scenario())


@pytest.mark.parametrize("more", [(), ("info", "memory|usage")])
def test_a_user_needs_these_commands_and_sees_memory_with_two_more(redis_url: str, more: tuple[str, ...]) -> None:
    """The rules of docs/index.md."""

    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            await publish(ledger(redis), "w", device=[1, 2])
            commands = [*COMMANDS, *more]
            await redis.execute_command(
                "ACL", "SETUSER", "reader", "reset", "on", ">secret", "%R~wr:*", *(f"+{name}" for name in commands)
            )
            url = urlsplit(redis_url)
            limited: Client = connect(RedisConfig(url=f"redis://reader:secret@{url.netloc}/0"))
            try:
                reader = Reader(limited)
                server = await reader.server()
                survey = await reader.survey()
                pool = await reader.pool(POOL, survey)
                assert pool.workers[0].tiers["device"].keys == 2
                assert pool.parts[0].stray_sets == 0
                assert await reader.match(POOL, survey, [1]) == {"w": Match(1)}
                figures = [server.used_bytes, server.max_bytes, server.policy]
                figures += [pool.parts[0].log_bytes, pool.parts[0].keys_bytes]
                assert [figure is not None for figure in figures] == [bool(more)] * 5
            finally:
                await limited.aclose()
                await redis.execute_command("ACL", "DELUSER", "reader")

    run(scenario())


def test_the_documentation_names_the_commands() -> None:
    page = (Path(__file__).parents[3] / "docs/index.md").read_text()
    assert " ".join(f"+{name}" for name in COMMANDS) in page


def test_something_else_under_a_name_of_ours_is_an_error(redis_url: str) -> None:
    async def scenario() -> None:
        async with redis_client(redis_url) as redis:
            await publish(ledger(redis), "w", device=[1])
            await redis.delete(PART.key("log"))
            await redis.set(PART.key("log"), "text")
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                await Reader(redis).pool(POOL, Survey({PART: {}}))

    run(scenario())
