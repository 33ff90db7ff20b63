"""Model files from real workers through a real indexer into Redis, and whatever may go wrong on the way."""

from __future__ import annotations

import asyncio
import hashlib
import os
import zlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from indexer.keys import pool_fingerprint
from indexer.layout import file_key
from indexer.server import file_transfers as file_transfers
from indexer.server.file_store import FileStore
from indexer.server.metrics import IndexerMetrics
from tests.indexer.support import POOL, Indexer, engine, follower, identity, in_step, indexer, running
from tests.redis_servers import server, server_cluster
from tests.support import eventually, folder_of, redis_client
from warmroute.redis.client import Client
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc
from worker.publish.offered_files import ModelFiles

SMALL = {"tokenizer.json": b'{"a": 1}' * 30_000, "chat_template.jinja": b"{{ messages }}", "config.json": b"{}"}
LARGE = {"tokenizer.json": os.urandom(6 << 20)}


def transfers_of(index: Indexer) -> dict[tuple[str, str], Any]:
    """The uploads that are under way, by pool and digest."""
    return index.service.files._transfers


def files_of(folder: Path, contents: dict[str, bytes]) -> ModelFiles:
    return ModelFiles.from_folder(folder_of(folder, contents))


def run(coroutine: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await coroutine

    asyncio.run(limited())


async def stored(redis: Client, files: ModelFiles) -> bool:
    """Whether all files lie in Redis as they are on disk."""
    for file in files.files:
        data = await redis.get(file_key(POOL, file.digest))
        if data is None or zlib.decompress(data) != file.path.read_bytes():
            return False
    return True


def outcome(index: Indexer, name: str) -> float:
    return (
        index.registry.get_sample_value("warmroute_indexer_model_files_total", {"pool": POOL, "outcome": name}) or 0.0
    )


class RawWorker:
    """A worker that says what the test wants; its loads are its questions."""

    def __init__(self, call) -> None:
        self.call = call
        self.answers: asyncio.Queue[pb.PublishResponse] = asyncio.Queue()

    async def read(self) -> None:
        while isinstance(response := await self.call.read(), pb.PublishResponse):
            self.answers.put_nowait(response)

    async def say(self, **body) -> pb.PublishResponse:
        await self.call.write(pb.PublishRequest(**body))
        return await self.answers.get()

    async def wanted(self) -> list[str]:
        """Send loads until files are asked for."""
        while True:
            await self.call.write(pb.PublishRequest(load=pb.Load(epoch=7)))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    response = await self.answers.get()
                if response.WhichOneof("body") == "files_wanted":
                    return list(response.files_wanted.digests)


@asynccontextmanager
async def raw_worker(index: Indexer, files: list[pb.ModelFile], **changes) -> AsyncIterator[RawWorker]:
    hello = engine(index.address, "raw").publisher.hello()
    del hello.files[:]
    hello.files.extend(files)
    hello.epoch = 7
    for name, value in changes.items():
        setattr(hello, name, value)
    digest = next((file.digest for file in files if file.name == "tokenizer.json"), "")
    hello.pool_fingerprint = pool_fingerprint(index_block_tokens=64, base_model=hello.model, tokenizer=digest)
    async with grpc.aio.insecure_channel(index.address) as channel:
        worker = RawWorker(index_pb2_grpc.IndexServiceStub(channel).Publish())
        reader = asyncio.get_running_loop().create_task(worker.read())
        try:
            assert (await worker.say(hello=hello)).WhichOneof("body") == "welcome"
            yield worker
        finally:
            worker.call.cancel()
            await asyncio.gather(reader, return_exceptions=True)


def test_the_files_of_a_pool_are_stored_once(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = files_of(tmp_path, SMALL)
        async with indexer(redis_url) as index, follower(redis_url) as mirror, redis_client(redis_url) as redis:
            engines = [engine(index.address, f"w{number}", files=files) for number in range(4)]
            async with running(*(worker.publisher.run() for worker in engines)):
                await eventually(lambda: stored(redis, files))
                await eventually(lambda: in_step(mirror, *engines))
                assert outcome(index, "stored") == len(SMALL)
                facts = mirror.mirror.workers["w0"].files
                assert {file["name"]: file["digest"] for file in facts} == {
                    name: hashlib.sha256(data).hexdigest() for name, data in SMALL.items()
                }
                # A later worker is asked for nothing; one with other files for what is new.
                others = files_of(tmp_path / "new", {**SMALL, "config.json": b"{} "})
                async with running(engine(index.address, "new", files=others).publisher.run()):
                    await eventually(lambda: stored(redis, others))
                assert outcome(index, "stored") == len(SMALL) + 1

    run(scenario())


def test_an_upload_holds_up_neither_deltas_nor_loads(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = files_of(tmp_path, LARGE)
        async with indexer(redis_url) as index, follower(redis_url) as mirror, redis_client(redis_url) as redis:
            worker = engine(index.address, "w", files=files)
            async with running(worker.publisher.run()):
                await eventually(lambda: transfers_of(index), within=20)
                block = 0
                seen = 0
                while not await stored(redis, files):
                    block += 1
                    worker.store(block)
                    await eventually(lambda: in_step(mirror, worker), within=2)
                    seen += bool(transfers_of(index))
                    assert worker.publisher.connected
                assert seen >= 2  # while the upload was under way
                assert outcome(index, "stored") == 1

    run(scenario())


def test_another_indexer_takes_an_upload_over_from_its_beginning(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = files_of(tmp_path, LARGE)
        async with redis_client(redis_url) as redis:
            async with indexer(redis_url) as index:
                worker = engine(index.address, "w", files=files)
                task = asyncio.get_running_loop().create_task(worker.publisher.run())
                transfers = transfers_of(index)
                await eventually(lambda: any(one.upload.received for one in transfers.values()), within=20)
                port = index.port
            assert not await stored(redis, files)
            assert transfers == {}
            async with indexer(redis_url, port=port):
                await eventually(lambda: stored(redis, files), within=20)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(scenario())


def test_a_wiped_redis_has_the_files_again(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = files_of(tmp_path, SMALL)
        async with (
            indexer(redis_url) as index,
            redis_client(redis_url) as redis,
            running(engine(index.address, "w", files=files).publisher.run()),
        ):
            await eventually(lambda: stored(redis, files))
            await redis.flushall()
            await eventually(lambda: stored(redis, files), within=20)

    run(scenario())


def test_a_file_that_someone_deletes_comes_again(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_transfers, "RECHECK_SECONDS", 0.5)

    async def scenario() -> None:
        files = files_of(tmp_path, SMALL)
        async with indexer(redis_url) as index, redis_client(redis_url) as redis:
            # Twice: the second worker sends what the first has sent already.
            workers = [engine(index.address, name, files=files) for name in ("one", "two")]
            async with running(*(worker.publisher.run() for worker in workers)):
                await eventually(lambda: stored(redis, files))
                await redis.delete(file_key(POOL, files.files[0].digest))
                await eventually(lambda: stored(redis, files), within=20)

    run(scenario())


def test_a_file_that_is_not_what_its_digest_says_is_not_stored(redis_url: str) -> None:
    async def scenario() -> None:
        lie = pb.ModelFile(name="tokenizer.json", digest="a" * 64, size=5)
        async with indexer(redis_url) as index, redis_client(redis_url) as redis:
            async with raw_worker(index, [lie], sends_files=True) as worker:
                assert await worker.wanted() == [lie.digest]
                answer = await worker.say(file=pb.FileChunk(digest=lie.digest, offset=0, data=b"hello"))
                assert "not what Hello says" in answer.file_ack.refused
                answer = await worker.say(file=pb.FileChunk(digest=lie.digest, offset=0, data=b"hello"))
                assert "not asked for" in answer.file_ack.refused
                # The stream goes on.
                answer = await worker.say(
                    snapshot=pb.SnapshotChunk(epoch=7, seq=1, last=True, held=[pb.TierKeys(tier="TIER_DEVICE")])
                )
                assert answer.ack.seq == 1
            assert not await redis.exists(file_key(POOL, lie.digest))
            assert outcome(index, "mismatch") == 1

    run(scenario())


def test_files_that_changed_on_disk_are_refused(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = files_of(tmp_path, SMALL)
        for name in ("tokenizer.json", "config.json"):
            (tmp_path / name).write_bytes(b"?" * (len(SMALL[name]) + 100))
        (tmp_path / "chat_template.jinja").unlink()
        async with indexer(redis_url) as index, redis_client(redis_url) as redis:
            worker = engine(index.address, "w", files=files)
            async with running(worker.publisher.run()):
                await eventually(lambda: outcome(index, "mismatch") == 2)
                worker.store(1)
                await eventually(lambda: worker.publisher.state.unpublished == 0)
            assert await redis.keys("*:files*") == []

    run(scenario())


@pytest.mark.parametrize(
    "file",
    [
        pb.ModelFile(name="tokenizer.json", digest="a" * 64, size=(64 << 20) + 1),
        pb.ModelFile(name="tokenizer.json", digest="a" * 64, size=0),
        pb.ModelFile(name="../tokenizer.json", digest="a" * 64, size=10),
        pb.ModelFile(name="model.safetensors", digest="a" * 64, size=10),
        pb.ModelFile(name="config.json", digest="", size=10),
    ],
    ids=["large", "empty", "path", "weights", "nameless"],
)
def test_nobody_is_asked_for_what_gateways_do_not_take(redis_url: str, file: pb.ModelFile) -> None:
    async def scenario() -> None:
        good = pb.ModelFile(name="special_tokens_map.json", digest="b" * 64, size=10)
        async with indexer(redis_url) as index, raw_worker(index, [file, good], sends_files=True) as worker:
            assert await worker.wanted() == [good.digest]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await worker.wanted()

    run(scenario())


def test_too_many_files_are_cut_off(redis_url: str) -> None:
    async def scenario() -> None:
        files = [
            pb.ModelFile(name=f"additional_chat_templates/{number}.jinja", digest=f"{number:064x}", size=1)
            for number in range(100)
        ]
        async with indexer(redis_url) as index, raw_worker(index, files, sends_files=True):
            (known,) = index.offered.values()
            (offer,) = known.offers
            assert list(offer.files) == [file.digest for file in files[:32]]

    run(scenario())


def test_a_worker_of_an_earlier_release_is_asked_for_nothing(redis_url: str) -> None:
    async def scenario() -> None:
        file = pb.ModelFile(name="tokenizer.json", digest="a" * 64, size=10)
        async with indexer(redis_url) as index, raw_worker(index, [file], sends_files=False) as worker:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.5):
                    await worker.wanted()
            assert index.offered == {}

    run(scenario())


def test_an_indexer_that_is_told_so_takes_none(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = files_of(tmp_path, SMALL)
        async with indexer(redis_url, model_files_bytes=0) as index, follower(redis_url) as mirror:
            worker = engine(index.address, "w", files=files)
            async with running(worker.publisher.run()):
                worker.store(1)
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size)
                assert index.offered == {}

    run(scenario())


def test_one_that_sends_nothing_makes_way_for_another(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_transfers, "STALLED_SECONDS", 0.5)

    async def scenario() -> None:
        files = files_of(tmp_path, {"tokenizer.json": b"{}"})
        file = pb.ModelFile(name="tokenizer.json", digest=files.files[0].digest, size=2)
        async with (
            indexer(redis_url) as index,
            redis_client(redis_url) as redis,
            raw_worker(index, [file], sends_files=True) as silent,
        ):
            assert await silent.wanted() == [file.digest]
            async with running(engine(index.address, "w", files=files).publisher.run()):
                await eventually(lambda: stored(redis, files), within=20)
            assert outcome(index, "abandoned") == 1

    run(scenario())


def test_files_that_find_no_room_are_not_sent_again_and_again(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = files_of(tmp_path, {"tokenizer.json": os.urandom(100_000), "config.json": b"{}"})
        async with indexer(redis_url, model_files_bytes=50_000) as index:
            workers = [engine(index.address, name, files=files) for name in ("one", "two", "three")]
            async with running(*(worker.publisher.run() for worker in workers)):
                await eventually(lambda: outcome(index, "stored") == 1 and outcome(index, "full") == 1)
                await eventually(lambda: len(index.offered[POOL].not_before) == 1)
                assert not transfers_of(index)
                assert outcome(index, "full") == 1

    run(scenario())


def test_a_user_who_may_not_write_files_loses_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after an upgrade of the indexers, before the rules of their user."""

    async def scenario(url: str) -> None:
        files = files_of(tmp_path / "model", SMALL)
        async with indexer(url) as index, follower(url) as mirror:
            worker = engine(index.address, "w", files=files)
            async with running(worker.publisher.run()):
                worker.store(1)
                await eventually(lambda: in_step(mirror, worker) and mirror.mirror.size)
                await eventually(lambda: "may not keep model files" in caplog.text)
                assert "setrange" in caplog.text
                assert index.service.ledger_up

    (tmp_path / "server").mkdir()
    with server(tmp_path / "server") as process:
        process.call("ACL", "SETUSER", "default", "-setrange", "-exists")
        run(scenario(process.url))


def test_the_files_of_a_pool_that_is_gone_go_too(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = files_of(tmp_path, SMALL)
        async with indexer(redis_url) as index, redis_client(redis_url) as redis:
            async with running(engine(index.address, "w", files=files).publisher.run()):
                await eventually(lambda: stored(redis, files))
            await eventually(lambda: not index.service.streams)
            for ledgers in index.service._ledgers.pools.values():
                for each in ledgers:
                    await redis.delete(each.part.key("workers"))
            await index.service._drop_late()
            assert await redis.keys("*:files*") == []

    run(scenario())


def test_a_cluster_takes_them_too(tmp_path: Path) -> None:
    (tmp_path / "servers").mkdir()
    with server_cluster(tmp_path / "servers") as cluster:

        async def scenario() -> None:
            files = files_of(tmp_path / "model", SMALL)
            async with indexer(cluster.url) as index, redis_client(cluster.url) as redis:
                async with running(engine(index.address, "w", files=files).publisher.run()):
                    await eventually(lambda: stored(redis, files), within=20)
                await FileStore(redis, IndexerMetrics(CollectorRegistry()), limit_bytes=1).forget(POOL)
                assert not await redis.exists(file_key(POOL, files.files[0].digest))

        run(scenario())


def test_identity_names_the_tokenizer_it_keys_with(tmp_path: Path) -> None:
    files = files_of(tmp_path, SMALL)
    assert identity("w", files=files).fingerprint != identity("w").fingerprint
