"""From workers that offer their files to a pool whose prompts are keyed, without any file given to the gateway."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from gateway.discovery.load_reports import LoadReports
from gateway.process.metrics import GatewayMetrics
from gateway.prompts import pool_prompts
from gateway.prompts.body import BodyKind, Unkeyed, parse_body
from gateway.prompts.byte_level import byte_characters
from gateway.prompts.keyer import Prompt, PromptKeyer
from gateway.prompts.pool_prompts import KeyerSupply
from gateway.prompts.refusals import Refusals
from gateway.routing.census.targets import Target
from gateway.routing.router import PoolRouter
from indexer.keys import prompt_keys
from indexer.layout import file_key
from indexer.reader.pool_index import PoolIndex
from tests.indexer.support import POOL, Engine, engine, indexer, running
from tests.redis_servers import server
from tests.support import eventually, folder_of, redis_client
from warmroute.config.pool import PoolConfig
from warmroute.redis.access import gateway_rules
from worker.publish.offered_files import ModelFiles

MODEL = "org/model@main"
TEXT = "The quick brown fox jumps over the lazy dog. " * 40


def run(coroutine: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await coroutine

    asyncio.run(limited())


@dataclass
class Gate:
    """A pool of a gateway: its router, who follows the real index, and its supply."""

    router: PoolRouter
    supply: KeyerSupply
    registry: CollectorRegistry

    @property
    def keyed(self) -> bool:
        return self.supply.prompts.keyer is not None and self.router.census.current().space is not None

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"warmroute_gateway_{name}", {"pool": POOL, **labels})

    async def key(self, text: str = TEXT) -> Prompt:
        keyer, space = self.supply.prompts.keyer, self.router.census.current().space
        assert keyer is not None
        assert space is not None
        prompt = await keyer.key(
            parse_body(b'{"model": "m", "prompt": "%b"}' % text.encode(), BodyKind.COMPLETION), space
        )
        assert isinstance(prompt, Prompt)
        return prompt


@asynccontextmanager
async def gate(redis_url: str, *workers: str, **config) -> AsyncIterator[Gate]:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    settings = PoolConfig(name=POOL, model=MODEL, **config)
    async with redis_client(redis_url) as redis:
        index = PoolIndex(redis, POOL, metrics)
        router = PoolRouter(settings, index, LoadReports([], [POOL], metrics), metrics, clock=lambda: 0.0)
        router.census.set_targets([Target(name, "127.0.0.1", 1, worker_id=name) for name in workers])
        supply = KeyerSupply(
            settings,
            metrics,
            redis=redis,
            workers=lambda: router.census.current().worker_facts,
            use_tokenizer=router.census.use_tokenizer,
            make=partial(PromptKeyer.from_folder, budget_seconds=60.0),
        )
        try:
            async with running(index.run(), supply.run()):
                yield Gate(router, supply, registry)
        finally:
            supply.close()


def variant(folder: Path, smollm2: Path, tokenizer: bytes = b"", **files: bytes) -> ModelFiles:
    """The built-in model's files, with something behind `tokenizer.json`, and others in place of some."""
    contents = {file.name: file.path.read_bytes() for file in ModelFiles.from_folder(smollm2).files}
    contents["tokenizer.json"] += tokenizer
    return ModelFiles.from_folder(folder_of(folder, {**contents, **files}))


def expected(worker: Engine, smollm2: Path, text: str = TEXT) -> list[int]:
    ids = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).encode(text).ids
    return prompt_keys(ids, worker.publisher.identity.fingerprint)


def test_a_gateway_keys_with_the_files_of_its_workers(redis_url: str, smollm2: Path) -> None:
    async def scenario() -> None:
        files = ModelFiles.from_folder(smollm2)
        async with indexer(redis_url) as index, gate(redis_url, "w") as here:
            assert here.metric("tokenizer", source="none") == 1
            assert "no worker has offered" in here.supply.prompts.describe()
            worker = engine(index.address, "w", model=MODEL, files=files)
            async with running(worker.publisher.run()):
                await eventually(lambda: here.keyed, within=30)
                assert (await here.key()).keys == expected(worker, smollm2)
                chat = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
                keyer, space = here.supply.prompts.keyer, here.router.census.current().space
                assert keyer is not None
                assert space is not None
                assert isinstance(await keyer.key(parse_body(chat, BodyKind.CHAT), space), Prompt)
                assert here.metric("tokenizer", source="workers") == 1
                assert here.metric("tokenizer", source="none") == 0
                assert here.metric("tokenizer_loads_total", outcome="loaded") == 1
                await eventually(lambda: here.metric("pool_fingerprints") == 1)
                assert here.metric("pool_file_sets") == 1
                assert files.files[0].digest[:8] in here.supply.prompts.describe()

    run(scenario())


def giving_up_on_probes() -> bytes:
    """A tokenizer whose library panics on some of the texts that it is tried on."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_characters(), merges=[]))
    split = pre_tokenizers.Split(Regex("(a+)+b|[^a]+|a"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer.to_str().encode()


ENDLESS = b"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_files_that_make_their_libraries_give_up_cost_no_more_than_their_use(
    redis_url: str, smollm2: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        panics = variant(tmp_path / "panics", smollm2, **{"tokenizer.json": giving_up_on_probes()})
        endless = variant(tmp_path / "endless", smollm2, **{"chat_template.jinja": ENDLESS})
        async with indexer(redis_url) as index, gate(redis_url, "w") as here:
            first = engine(index.address, "w", model=MODEL, files=panics)
            async with running(first.publisher.run()):
                await eventually(lambda: here.metric("tokenizer_loads_total", outcome="failed"), within=30)
                assert "repetitions within repetitions" in here.supply.prompts.describe()
                assert not here.keyed
            second = engine(index.address, "w", model=MODEL, files=endless)
            async with running(second.publisher.run()):
                await eventually(lambda: here.keyed, within=30)
                assert (await here.key()).keys == expected(second, smollm2)
                chat = parse_body(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}', BodyKind.CHAT)
                keyer, space = here.supply.prompts.keyer, here.router.census.current().space
                assert keyer is not None
                assert space is not None
                assert await keyer.key(chat, space) == Unkeyed("template", chat.estimated_tokens)
                await eventually(lambda: here.metric("refused_files", kind="template") == 1)
                assert any("template of" in each for each in here.supply.prompts.refused)
        async with redis_client(redis_url) as redis:
            elsewhere, now = Refusals(redis, POOL), time.time()
            await elsewhere.load(now)
            assert elsewhere.reason(panics.files[0].digest, now)
            assert elsewhere.reason("0" * 64, now) is None

    run(scenario())


def test_most_workers_decide_and_the_split_is_seen(
    redis_url: str, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_prompts, "RETIRE_SECONDS", 0.5)

    async def scenario() -> None:
        old, new = ModelFiles.from_folder(smollm2), variant(tmp_path, smollm2, b"\n")
        async with indexer(redis_url) as index, gate(redis_url, "a", "b", "c") as here:
            first = engine(index.address, "a", model=MODEL, files=old)
            second = engine(index.address, "b", model=MODEL, files=new)
            third = engine(index.address, "c", model=MODEL, files=new)
            async with running(first.publisher.run()):
                await eventually(lambda: here.keyed, within=30)
                former = here.supply.prompts.keyer
                async with running(second.publisher.run()):
                    await eventually(lambda: here.metric("pool_fingerprints") == 2, within=20)
                    assert here.supply.prompts.keyer is former  # a tie
                    async with running(third.publisher.run()):
                        await eventually(lambda: here.supply.prompts.keyer is not former, within=30)
                        assert (await here.key()).keys == expected(second, smollm2)
                        assert here.metric("pool_fingerprints") == 2
                        await eventually(lambda: not here.supply._retired)
                        assert former is not None and former._threads._shutdown  # noqa: PT018

    run(scenario())


def test_a_changed_template_is_taken_over(redis_url: str, smollm2: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        changed = variant(tmp_path, smollm2, **{"chat_template.jinja": b"{{ messages[0]['content'] }}"})
        async with indexer(redis_url) as index, gate(redis_url, "a", "b") as here:
            one = engine(index.address, "a", model=MODEL, files=ModelFiles.from_folder(smollm2))
            two = engine(index.address, "b", model=MODEL, files=changed)
            async with running(two.publisher.run()):
                await eventually(lambda: here.keyed, within=30)
                async with running(one.publisher.run()):
                    await eventually(lambda: here.metric("pool_file_sets") == 2, within=20)
                    assert here.metric("pool_fingerprints") == 1
            assert here.metric("tokenizer_loads_total", outcome="loaded") == 1

    run(scenario())


def test_a_value_that_is_not_the_workers_is_waited_out(
    redis_url: str, smollm2: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        files = ModelFiles.from_folder(smollm2)
        assert files.tokenizer is not None
        key = file_key(POOL, files.tokenizer.digest)
        async with redis_client(redis_url) as redis, indexer(redis_url) as index:
            await redis.set(key, zlib.compress(b"{}"))
            worker = engine(index.address, "w", model=MODEL, files=files)
            async with gate(redis_url, "w") as here, running(worker.publisher.run()):
                await eventually(lambda: here.metric("tokenizer_loads_total", outcome="failed"), within=20)
                assert "delete its key" in here.supply.prompts.describe()
                assert not here.keyed
                assert caplog.text.count("delete its key") == 1
                await redis.delete(key)
                # What the next check takes at most is no test's time.
                index.offered[POOL].check_at = 0.0
                await eventually(lambda: here.keyed, within=60)
                assert here.supply.prompts.trouble == ""

    run(scenario())


def test_files_that_are_no_tokenizer_end_nothing(redis_url: str, smollm2: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        bad = ModelFiles.from_folder(folder_of(tmp_path, {"tokenizer.json": b'{"model": 1}'}))
        async with indexer(redis_url) as index, gate(redis_url, "a", "b", "c") as here:
            good = ModelFiles.from_folder(smollm2)
            async with running(engine(index.address, "a", model=MODEL, files=bad).publisher.run()):
                await eventually(lambda: here.metric("tokenizer_loads_total", outcome="failed"), within=20)
                assert not here.keyed
                others = [engine(index.address, name, model=MODEL, files=good) for name in ("b", "c")]
                async with running(*(worker.publisher.run() for worker in others)):
                    await eventually(lambda: here.keyed, within=30)

    run(scenario())


def test_an_index_without_the_files_is_said(
    redis_url: str, smollm2: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An indexer that takes none, or one of an earlier release."""

    async def scenario() -> None:
        files = ModelFiles.from_folder(smollm2)
        async with (
            indexer(redis_url, model_files_bytes=0) as index,
            gate(redis_url, "w") as here,
            running(engine(index.address, "w", model=MODEL, files=files).publisher.run()),
        ):
            await eventually(lambda: "waiting for the workers' files" in here.supply.prompts.describe(), within=20)
            assert not here.keyed
            monkeypatch.setattr(pool_prompts, "SETTLE_SECONDS", 0.0)
            await eventually(lambda: "Do the indexers take files" in caplog.text)
            await eventually(
                lambda: here.router.census.set_targets([]) is not None and "no worker" in here.supply.prompts.trouble
            )

    run(scenario())


def test_a_folder_is_an_override(redis_url: str, smollm2: Path, tmp_path: Path) -> None:
    """Also of workers that say otherwise, who are then routed by load."""

    async def scenario() -> None:
        async with indexer(redis_url) as index, gate(redis_url, "w", model_path=smollm2) as here:
            assert here.supply.prompts.describe() == str(smollm2)
            assert here.metric("tokenizer", source="folder") == 1
            files = variant(tmp_path, smollm2, b"\n")
            async with running(engine(index.address, "w", model=MODEL, files=files).publisher.run()):
                await eventually(lambda: here.metric("pool_fingerprints") == 1, within=20)
                assert here.router.census.current().space is None
                assert here.supply.prompts.describe() == str(smollm2)

    run(scenario())


def test_a_pool_that_trusts_no_worker_takes_no_file_of_one(redis_url: str, smollm2: Path) -> None:
    async def scenario() -> None:
        local = {"model_files": {"trust": "local"}}
        async with indexer(redis_url) as index, gate(redis_url, "w", **local) as here:
            worker = engine(index.address, "w", model=MODEL, files=ModelFiles.from_folder(smollm2))
            async with running(worker.publisher.run()):
                await eventually(lambda: here.metric("pool_file_sets") == 1, within=30)  # they are there to be had
                await eventually(lambda: pool_prompts.LOCAL_ALONE in here.supply.prompts.describe(), within=20)
                assert here.supply.prompts.keyer is None
                assert here.metric("tokenizer_loads_total", outcome="loaded") in {None, 0}
        async with indexer(redis_url) as index, gate(redis_url, "w", model_path=smollm2, **local) as here:
            worker = engine(index.address, "w", model=MODEL, files=ModelFiles.from_folder(smollm2))
            async with running(worker.publisher.run()):
                await eventually(lambda: here.keyed, within=30)  # by the gateway's own, which are the same

    run(scenario())


def test_a_user_who_may_not_read_files_is_told(tmp_path: Path, smollm2: Path) -> None:
    with server(tmp_path) as process:
        rules = gateway_rules().replace("+getrange ", "")
        process.call("ACL", "SETUSER", "gateway", "on", ">g", *rules.split())

        async def scenario() -> None:
            files = ModelFiles.from_folder(smollm2)
            address = process.url.removeprefix("redis://")
            async with (
                indexer(process.url) as index,
                gate(f"redis://gateway:g@{address}", "w") as here,
                running(engine(index.address, "w", model=MODEL, files=files).publisher.run()),
            ):
                await eventually(lambda: "+getrange" in here.supply.prompts.describe(), within=20)

        run(scenario())


def test_a_gateway_is_not_ready_while_the_first_files_are_on_their_way(
    redis_url: str, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        files = ModelFiles.from_folder(smollm2)
        async with indexer(redis_url, model_files_bytes=0) as index, gate(redis_url, "w") as here:
            assert not here.supply.settling
            async with running(engine(index.address, "w", model=MODEL, files=files).publisher.run()):
                await eventually(lambda: here.supply.settling, within=20)
                monkeypatch.setattr(pool_prompts, "SETTLE_SECONDS", 0.0)
                assert not here.supply.settling

    run(scenario())
